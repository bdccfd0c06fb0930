package mirror

import (
	"maps"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/s3store"
	"github.com/bctl/bctl/internal/testenv"
)

// objectsOf returns the bytes of all objects of a repository.
func (w *world) objectsOf(s store.Store) map[string]string {
	w.Helper()
	all := map[string]string{}
	for _, prefix := range append([]string{store.ConfigName}, store.MirroredPrefixes...) {
		for o, err := range s.List(w.Context(), prefix) {
			w.must(err)
			data, err := s.Get(w.Context(), o.Name, maxObjectBytes)
			w.must(err)
			all[o.Name] = string(data)
		}
	}
	return all
}

// A bucket is a mirror, and a store: copied there, compared, healed, and copied back from there.
func TestBuckets(t *testing.T) {
	for name, start := range map[string]func(testing.TB) *testenv.S3Server{"versitygw": testenv.VersityGW, "minio": testenv.Minio} {
		t.Run(name, func(t *testing.T) {
			server := start(t)
			open := func(prefix string) store.Store {
				s, err := s3store.Open(t.Context(), s3store.Options{
					Endpoint: "http://" + server.Endpoint, Bucket: server.Bucket, Prefix: prefix, Region: server.Region,
					AccessKey: server.AccessKey, SecretKey: server.SecretKey, RetryFor: 5 * time.Second,
				})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			}
			testBuckets(newWorld(t), open("mirror"), open("again"))
		})
	}
}

func testBuckets(w *world, second, again store.Store) {
	m := w.snapshot()
	w.snapshot()
	w.signed(pack.KindCatalog, store.CatalogName(1))
	o := Options{From: w.from, To: second, KeepDeleted: time.Hour, Reread: 1, Now: func() time.Time { return w.now }}
	if s := w.run(o); s.Copied != 10 {
		w.Errorf("%+v", s)
	}
	if s := w.run(o); s.Copied != 0 || len(s.Problems) > 0 {
		w.Errorf("%+v", s)
	}
	// Somebody replaces an object in the mirror.
	w.must(second.Delete(w.Context(), m.packs[0]))
	w.must(second.Put(w.Context(), m.packs[0], []byte("other bytes")))
	c, err := Compare(w.Context(), Options{From: w.from, To: second, Reread: 1})
	w.must(err)
	if len(c.Problems) != 1 || c.Problems[0].Side != InMirror || c.Problems[0].Name != m.packs[0] {
		w.Errorf("%+v", c.Problems)
	}
	if s := w.run(o); s.Replaced != 1 || len(s.Problems) > 0 {
		w.Errorf("%+v", s)
	}
	want := w.objects(w.from)
	if got := w.objectsOf(second); !maps.Equal(got, want) {
		w.Errorf("the mirror has %d objects, want %d", len(got), len(want))
	}
	w.removeFrom(m.packs[1])
	w.run(o)
	w.now = w.now.Add(2 * time.Hour)
	if s := w.run(o); s.Deleted != 1 || s.Retained != 0 {
		w.Errorf("%+v", s)
	}
	for range 2 { // the second run finds all there
		if s, err := CopyBack(w.Context(), BackOptions{From: second, To: again}); err != nil || len(s.Problems) > 0 {
			w.Errorf("%+v, %v", s, err)
		}
	}
	if got := w.objectsOf(again); !maps.Equal(got, w.objects(w.from)) {
		w.Errorf("copied back: %d objects", len(got))
	}
	source, err := NewSource(w.Context(), second, w.id, w.signing.Signer())
	w.must(err)
	w.must(again.Delete(w.Context(), m.record))
	if done, err := source.PutBack(w.Context(), again, m.record); err != nil || !done {
		w.Errorf("put back: %t, %v", done, err)
	}
}
