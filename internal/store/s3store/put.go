package s3store

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

const (
	checksumHeader = "x-amz-checksum-crc64nvme"
	putMetadata    = "Bctl-Put" // in the form that the server returns: x-amz-meta-bctl-put
)

// A putRequest is one Put or PutNew, across all its attempts.
type putRequest struct {
	name     string
	data     []byte
	checksum string // CRC64NVME of data, as in the header
	token    string // of a PutNew; otherwise empty
}

func newPutRequest(name string, data []byte, token string) *putRequest {
	return &putRequest{name, data, minio.ChecksumCRC64NVME.ChecksumBytes(data).Encoded(), token}
}

// Put implements store.Store.
func (s *Store) Put(ctx context.Context, name string, data []byte) error {
	put := newPutRequest(name, data, "")
	again := false
	return s.do(ctx, "put", name, func(ctx context.Context, w *watchdog) error {
		if again {
			// The previous attempt may have been applied, or refused with a 412 that was lost:
			// servers refuse early, and close the connection while the body is sent.
			if there, err := s.there(ctx, w, put); there || err != nil {
				return err
			}
		}
		again = true
		err := s.send(ctx, w, put)
		if !taken(err) {
			return err
		}
		there, err := s.there(ctx, w, put)
		if !there && err == nil {
			err = final{fmt.Errorf("and it cannot be read, to compare: %w", backup.ErrExists)}
		}
		return err
	})
}

// there reports whether the object is in the store. If an object has the name but other content,
// the error is backup.ErrExists. Without the permission to read it, there is false.
func (s *Store) there(ctx context.Context, w *watchdog, put *putRequest) (bool, error) {
	same, err := s.holds(ctx, w, put)
	switch {
	case err == nil && !same:
		return false, final{fmt.Errorf("with other content: %w", backup.ErrExists)}
	case err != nil && (errors.Is(kindOf(err), backup.ErrNotFound) || errors.Is(kindOf(err), fs.ErrPermission)):
		return false, nil
	}
	return same, err
}

// PutNew implements store.Store. If the server ignores If-None-Match, two PutNews that run at the
// same time may both succeed.
func (s *Store) PutNew(ctx context.Context, name string, data []byte) error {
	put := newPutRequest(name, data, rand.Text())
	return s.do(ctx, "put", name, func(ctx context.Context, w *watchdog) error {
		before, err := s.owner(ctx, put)
		switch {
		case err != nil:
			return err
		case before == ours:
			return nil // an earlier attempt was applied
		case before == others:
			return final{backup.ErrExists}
		}
		sent := s.send(ctx, w, put)
		if sent != nil && !taken(sent) {
			return sent
		}
		after, err := s.owner(ctx, put)
		switch {
		case err != nil:
			return err
		case after == ours, after == unknown && sent == nil:
			return nil
		case after == others, after == unknown:
			return final{backup.ErrExists}
		}
		return errVanished
	})
}

// errVanished reports that the object was deleted in between.
var errVanished = errors.New("the name was taken, but has no object")

// An owner is the owner of the object that a PutNew finds under its name.
type owner uint8

const (
	nobody  owner = iota
	unknown       // these credentials may not read it
	ours
	others
)

func (s *Store) owner(ctx context.Context, put *putRequest) (owner, error) {
	info, err := s.head(ctx, put.name)
	switch {
	case err == nil && info.UserMetadata[putMetadata] == put.token:
		return ours, nil
	case err == nil:
		return others, nil
	case errors.Is(kindOf(err), backup.ErrNotFound):
		return nobody, nil
	case errors.Is(kindOf(err), fs.ErrPermission):
		return unknown, nil
	}
	return nobody, err
}

// taken reports whether a PUT was refused because the name has an object. A server that locks its
// objects may check the lock before the condition.
func taken(err error) bool {
	response, ok := errors.AsType[minio.ErrorResponse](err)
	return ok && (response.StatusCode == http.StatusPreconditionFailed ||
		response.StatusCode == http.StatusForbidden && saysLocked(response))
}

// send makes the PUT. It repeats it without a feature that the server turns out not to support.
func (s *Store) send(ctx context.Context, w *watchdog, put *putRequest) error {
	for {
		checksum, conditional := !s.noChecksum.Load(), !s.noConditional.Load()
		info, err := s.sendOnce(ctx, w, put, checksum, conditional)
		switch {
		case err == nil && !checksum, err == nil && info.ChecksumCRC64NVME == put.checksum:
			return nil
		case err == nil && info.ChecksumCRC64NVME != "":
			return errDamaged
		case err == nil:
			s.noChecksum.Store(true)
			return s.readBack(ctx, w, put)
		case checksum && refuses(err, "checksum"):
			s.noChecksum.Store(true)
		case conditional && refuses(err, "if-none-match"):
			s.noConditional.Store(true)
		default:
			return err
		}
	}
}

// refuses reports whether the server refused the request because it does not support a header. A
// plain "not implemented" can refer to any header.
func refuses(err error, header string) bool {
	response, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok {
		return false
	}
	switch response.StatusCode {
	case http.StatusNotImplemented:
		return true
	case http.StatusBadRequest:
		unsupported := response.Code == "InvalidArgument" || response.Code == "InvalidRequest"
		return unsupported && strings.Contains(strings.ToLower(response.Message), header)
	}
	return false
}

func (s *Store) sendOnce(ctx context.Context, w *watchdog, put *putRequest, checksum, conditional bool) (minio.UploadInfo, error) {
	options := minio.PutObjectOptions{
		UserMetadata:         map[string]string{},
		DisableMultipart:     true,
		DisableContentSha256: true,
	}
	var md5Base64 string
	if checksum {
		options.UserMetadata[checksumHeader] = put.checksum
	} else {
		sum := md5.Sum(put.data)
		md5Base64 = base64.StdEncoding.EncodeToString(sum[:])
	}
	if put.token != "" {
		options.UserMetadata[putMetadata] = put.token
	}
	if mode := s.lockMode(put.name); mode != "" {
		options.Mode, options.RetainUntilDate = mode, time.Now().Add(store.InitialLock).UTC()
	}
	if conditional {
		options.SetMatchETagExcept("*")
	}
	w.timer.Reset(w.reply)
	body := &upload{watchdog: w, rest: put.data}
	defer body.release()
	// Core's PutObject, because Client's sends the checksum header only together with trailing
	// headers.
	return s.core.PutObject(ctx, s.options.Bucket, s.prefix+put.name, body, int64(len(put.data)), md5Base64, "", options)
}

// holds reports whether the stored object is the one to put.
func (s *Store) holds(ctx context.Context, w *watchdog, put *putRequest) (bool, error) {
	info, err := s.head(ctx, put.name)
	switch {
	case err != nil:
		return false, err
	case info.Size != int64(len(put.data)):
		return false, nil
	case info.ChecksumCRC64NVME != "":
		return info.ChecksumCRC64NVME == put.checksum, nil
	}
	return s.sameBytes(ctx, w, put)
}

// readBack verifies an object that the server has stored without checking it.
func (s *Store) readBack(ctx context.Context, w *watchdog, put *putRequest) error {
	same, err := s.sameBytes(ctx, w, put)
	if err == nil && !same {
		err = final{fmt.Errorf("it arrived damaged, and the server does not check: %w", backup.ErrCorrupt)}
	}
	return err
}

func (s *Store) sameBytes(ctx context.Context, w *watchdog, put *putRequest) (bool, error) {
	body, _, _, err := s.core.GetObject(ctx, s.options.Bucket, s.prefix+put.name, minio.GetObjectOptions{})
	if err != nil {
		return false, err
	}
	defer body.Close()
	rest, buf := put.data, make([]byte, 64<<10)
	for in := io.Reader(download{w, body}); ; {
		n, err := in.Read(buf)
		if n > len(rest) || !bytes.Equal(buf[:n], rest[:n]) {
			return false, nil
		}
		rest = rest[n:]
		if err == io.EOF {
			return len(rest) == 0, nil
		}
		if err != nil {
			return false, err
		}
	}
}
