package s3store

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

var _ store.Store = (*Store)(nil)

// A Store keeps objects in a bucket, below a prefix.
type Store struct {
	options   Options
	prefix    string // "" or ending in a slash
	core      minio.Core
	transport *http.Transport

	// Features that the server has turned out not to support.
	noChecksum    atomic.Bool // x-amz-checksum-crc64nvme; replaced by Content-MD5
	noConditional atomic.Bool // If-None-Match on PUT
}

// Open returns the store. It finds the credentials, reads the files that the options name and
// validates all options, but does not connect to the server. Whether the server answers, and has
// the bucket, shows in the first operation.
func Open(ctx context.Context, options Options) (*Store, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	s := &Store{options: o}
	if o.Prefix != "" {
		s.prefix = o.Prefix + "/"
	}
	if s.transport, err = newTransport(o); err != nil {
		return nil, s.openError(err)
	}
	found, err := newCredentials(ctx, o, &http.Client{Transport: s.transport, Timeout: time.Minute})
	if err != nil {
		return nil, s.openError(err)
	}
	endpoint, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, s.openError(err)
	}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds:        found,
		Secure:       endpoint.Scheme == "https",
		Transport:    s.transport,
		Region:       o.Region,
		BucketLookup: lookups[o.Addressing],
		MaxRetries:   1, // do retries for longer, and reports the retries
	})
	if err != nil {
		return nil, s.openError(err)
	}
	s.core.Client = client
	return s, nil
}

var lookups = map[Addressing]minio.BucketLookupType{
	AddressingAuto: minio.BucketLookupAuto,
	AddressingPath: minio.BucketLookupPath,
	AddressingHost: minio.BucketLookupDNS,
}

func (s *Store) openError(err error) error { return s.fail("open", "", nil, err) }

// String returns "s3", the endpoint, the bucket and the prefix.
func (s *Store) String() string { return s.options.String() }

// Close closes the idle connections.
func (s *Store) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// Stat implements store.Store.
func (s *Store) Stat(ctx context.Context, name string) (int64, error) {
	var sizeBytes int64
	err := s.do(ctx, "stat", name, func(ctx context.Context, _ *watchdog) error {
		info, err := s.head(ctx, name)
		sizeBytes = info.Size
		return err
	})
	return sizeBytes, err
}

func (s *Store) head(ctx context.Context, name string) (minio.ObjectInfo, error) {
	info, err := s.core.StatObject(ctx, s.options.Bucket, s.prefix+name, minio.StatObjectOptions{Checksum: true})
	if err == nil && info.Size < 0 {
		err = fmt.Errorf("the server does not say how large it is: %w", backup.ErrUnavailable)
	}
	return info, err
}

// objectName returns the name of the object with this key. ok is false for objects that other
// programs have put into the bucket.
func (s *Store) objectName(key string) (name string, ok bool) {
	name, ok = strings.CutPrefix(key, s.prefix)
	return name, ok && store.CheckName(name) == nil
}
