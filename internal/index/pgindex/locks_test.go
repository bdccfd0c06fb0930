package pgindex_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/url"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/testenv"
)

// Committers that receive the same chunks and lists, each in a different order, wait for each other
// without a deadlock: the server need not abort any of them. (Here it would take ten minutes to
// detect a deadlock.)
func TestSameChunksAndLists(t *testing.T) {
	address, err := url.Parse(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	query.Set("deadlock_timeout", "10min")
	address.RawQuery = query.Encode()
	x := open(t, address.String())
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, _, err = x.Migrate(t.Context())
	must(err)
	filer, err := x.AddFiler(t.Context(), backup.Filer{Name: "filer"})
	must(err)
	const committers, calls, things = 6, 8, 1000
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	indexes, snapshots := make([]index.Index, committers), make([]backup.Snapshot, committers)
	for c := range committers {
		shard, err := x.EnsureShard(ctx, filer.ID, string(rune('a'+c)), "posix:///srv")
		must(err)
		snapshots[c], err = x.BeginSnapshot(ctx, shard.ID, backup.Snapshot{}, time.Now())
		must(err)
		indexes[c] = open(t, address.String())
	}
	for call := range uint64(calls) { // all at once, with new chunks and lists
		var group errgroup.Group
		for c := range committers {
			group.Go(func() error {
				random := rand.New(rand.NewPCG(call, uint64(c)))
				outcomes, err := indexes[c].Apply(ctx, sameThings(snapshots[c], random, things, call, c%2 == 0))
				for _, o := range outcomes {
					if o != (index.Outcome{}) {
						t.Errorf("%+v, want it accepted", o)
					}
				}
				return err
			})
		}
		must(group.Wait())
	}
}

// sameThings returns two packs, or two messages of lists, with the same chunks and lists as each
// other call has, but in another order.
func sameThings(s backup.Snapshot, random *rand.Rand, n int, call uint64, lists bool) (results []index.Result) {
	for range 2 {
		p := &backup.PackStored{Snapshot: s.ID, Pack: backup.NewPackID(), FrameBytes: []uint32{1}}
		l := &backup.ListsStored{Snapshot: s.ID}
		for _, i := range random.Perm(n) {
			var id backup.ChunkID
			binary.BigEndian.PutUint64(id[:], uint64(i)<<53|call)
			p.Chunks = append(p.Chunks, backup.ChunkPlace{ID: id, Length: 1})
			l.Lists = append(l.Lists, backup.ChunkList{List: id, Chunks: []backup.ChunkID{id}})
		}
		if lists {
			results = append(results, index.Result{Lists: l})
		} else {
			results = append(results, index.Result{Pack: p})
		}
	}
	return results
}
