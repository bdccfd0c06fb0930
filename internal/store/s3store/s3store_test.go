package s3store

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/storetest"
	"github.com/bctl/bctl/internal/testenv"
)

// servers are the two servers that every test of behaviour runs against.
var servers = map[string]func(testing.TB) *testenv.S3Server{
	"versitygw": testenv.VersityGW,
	"minio":     testenv.Minio,
}

func forEachServer(t *testing.T, test func(t *testing.T, server *testenv.S3Server)) {
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		t.Run(name, func(t *testing.T) { test(t, servers[name](t)) })
	}
}

// optionsFor returns options for the server. A busy machine may take long for a request, so they
// retry for a minute; a test of giving up sets less.
func optionsFor(server *testenv.S3Server) Options {
	return Options{
		Endpoint: "http://" + server.Endpoint, Bucket: server.Bucket, Region: server.Region,
		AccessKey: server.AccessKey, SecretKey: server.SecretKey,
		RetryFor: time.Minute,
	}
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestConformance(t *testing.T) {
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		stores := 0
		storetest.Run(t, func(t *testing.T) store.Store {
			o := optionsFor(server)
			stores++
			o.Prefix = fmt.Sprintf("repositories/number-%d", stores)
			return open(t, o)
		})
	})
}

// A listing has many pages, and omits objects of other programs in the bucket.
func TestListOfManyPages(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		o := optionsFor(server)
		s := open(t, o)
		const objects = 2*listObjects + 1
		group, ctx := errgroup.WithContext(t.Context())
		group.SetLimit(16)
		for i := range objects {
			group.Go(func() error { return s.Put(ctx, fmt.Sprintf("packs/%d/%05d", i%3, i), nil) })
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.core.PutObject(t.Context(), o.Bucket, "packs/not ours", strings.NewReader("x"), 1, "", "", minioPut); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for object, err := range s.List(t.Context(), "packs/") {
			if err != nil {
				t.Fatal(err)
			}
			seen[object.Name] = true
		}
		if len(seen) != objects {
			t.Errorf("%d names, want %d", len(seen), objects)
		}
	})
}

// Two stores in one bucket do not see each other's objects, even if the prefix of one begins with
// that of the other.
func TestPrefixesAreApart(t *testing.T) {
	server := testenv.VersityGW(t)
	o := optionsFor(server)
	o.Prefix = "a"
	short := open(t, o)
	o.Prefix = "ab"
	long := open(t, o)
	if err := long.Put(t.Context(), "repository", []byte("long")); err != nil {
		t.Fatal(err)
	}
	for object, err := range short.List(t.Context(), "") {
		t.Errorf("listed %v, %v", object, err)
	}
	if err := short.PutNew(t.Context(), "repository", []byte("short")); err != nil {
		t.Error(err)
	}
}

func BenchmarkStore(b *testing.B) {
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		b.Run(name, func(b *testing.B) { storetest.Bench(b, open(b, optionsFor(servers[name](b)))) })
	}
}

// counter counts the calls of OnRetry.
type counter struct {
	retries atomic.Int64
	first   chan Retry // the first of them
}

func newCounter() *counter { return &counter{first: make(chan Retry, 1)} }

func (c *counter) observe(r Retry) {
	if c.retries.Add(1) == 1 {
		c.first <- r
	}
}
