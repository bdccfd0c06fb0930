package commit

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/telemetry"
	"github.com/bctl/bctl/internal/testenv"
)

// run starts a committer that logs to the returned testenv.Buffer, until the test ends.
func (f *fixture) run() *testenv.Buffer {
	f.Helper()
	_, err := f.conn.EnsureStreams(f.ctx, []string{backup.DefaultSite})
	f.must(err)
	log := &testenv.Buffer{}
	s := f.service(f.idx, Options{
		Poll: 5 * time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil)), Metrics: telemetry.NewMetrics("committer", "test").Committer(),
	})
	ctx, stop := context.WithCancel(f.ctx)
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	f.Cleanup(func() { stop(); running.Wait() })
	return log
}

// A reader's claim about a pack is not sufficient: unless the pack is in the store with the
// announced length, nothing in it can be relied on (I1).
func TestPackThatIsNotStoredIsRefused(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	f.begin()
	task := f.claimTask()
	log := f.run()
	stored := &backup.PackStored{Snapshot: task.Job.Snapshot, Pack: backup.PackID{1}, StoredBytes: 3, FrameBytes: []uint32{1}, Chunks: []backup.ChunkPlace{{ID: backup.ChunkID{1}, Length: 1}}}
	shorter := *stored
	shorter.Pack = backup.PackID{2}
	f.must(f.store.Put(f.ctx, store.PackName(shorter.Snapshot, shorter.Pack), []byte{1, 2}))
	for _, p := range []*backup.PackStored{stored, &shorter} {
		f.must(flow.Publish(f.ctx, conn, flow.Packs, p))
	}
	f.until(func() bool { return strings.Count(log.String(), "result refused") == 2 })
	for _, say := range []string{
		store.PackName(stored.Snapshot, stored.Pack) + ": not found", store.PackName(shorter.Snapshot, shorter.Pack) + " has 2 bytes, and is said to have 3",
	} {
		if !strings.Contains(log.String(), say) {
			t.Errorf("the log does not say %q:\n%s", say, log)
		}
	}
	if at := value(f.idx.LocateReadable(f.ctx, []backup.ChunkID{{1}}))(f); at[0].Length != 0 {
		t.Errorf("a chunk of a pack that is not there is said to be at %+v", at[0])
	}
}

// A pack is registered later if the store does not answer at first, or if the store has no objects
// at all.
func TestPackIsRegisteredOnceTheStoreAnswers(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	f.begin()
	task := f.claimTask()
	log := f.run()
	for n, fault := range []*atomic.Bool{&f.store.silent, &f.store.gone, &f.store.hangs} {
		fault.Store(true)
		id := byte(n + 1)
		stored := &backup.PackStored{
			Snapshot: task.Job.Snapshot, Pack: backup.PackID{id}, StoredBytes: 2, FrameBytes: []uint32{1}, Chunks: []backup.ChunkPlace{{ID: backup.ChunkID{id}, Length: 1}},
		}
		f.must(f.store.Put(f.ctx, store.PackName(stored.Snapshot, stored.Pack), []byte{1, 2}))
		f.must(flow.Publish(f.ctx, conn, flow.Packs, stored))
		f.until(func() bool { return strings.Count(log.String(), "registering a pack failed, will retry") > n })
		fault.Store(false)
		f.until(func() bool { return value(f.idx.LocateReadable(f.ctx, []backup.ChunkID{{id}}))(f)[0].Length == 1 })
	}
	if strings.Contains(log.String(), "result refused") {
		t.Errorf("a pack was refused:\n%s", log)
	}
	// A store that hangs is an outage of the store, which the log reports once.
	if !strings.Contains(log.String(), "(the store was unavailable for 5s)") {
		t.Errorf("a store that hangs is not reported as unavailable:\n%s", log)
	}
}

// A listing with false lengths is refused, wherever it is in a result, with its directory's name.
// The work comes again, and the snapshot is made of other results.
func TestListingThatCannotBeReadIsRefused(t *testing.T) {
	f := newFixture(t)
	conn, _ := f.queue()
	snap := f.begin()
	task := f.claimTask()
	log := f.run()
	lying := pageOf("a/directory", "content")
	// Columns of 4 GiB.
	lying.Listing = append([]byte{1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f}, lying.Listing...)
	for _, lie := range []func(*backup.SliceWalked){
		func(s *backup.SliceWalked) { s.Pages = []backup.PageVersion{pageOf("", "fine"), lying} },
		func(s *backup.SliceWalked) { s.Batches = slices.Concat(toRead(pageOf("", "fine")), toRead(lying)) },
	} {
		slice := indextest.SliceOf(task)
		lie(slice)
		f.must(flow.Publish(f.ctx, conn, flow.Slices, slice))
	}
	f.must(flow.Publish(f.ctx, conn, flow.Batches, &backup.BatchStored{Snapshot: snap.ID, Batch: 1, Attempt: 1, Pages: []backup.PageVersion{lying}}))
	f.until(func() bool { return strings.Count(log.String(), "result refused") == 3 })
	if n := strings.Count(log.String(), `page 0 of directory \"a/directory\": listing: cut short: corrupt`); n != 3 {
		t.Errorf("%d refusals of 3 say what is wrong where:\n%s", n, log)
	}
	honest := indextest.SliceOf(task)
	honest.Pages, honest.Counts.Files = []backup.PageVersion{pageOf("", "honest")}, 1
	f.must(flow.Publish(f.ctx, conn, flow.Slices, honest))
	if got := f.ended(snap.ID); got.State != backup.Committed || f.pages(snap.ID)[backup.PageName{}] != "honest" {
		t.Errorf("%s (%s): %v", got.State, got.Reason, f.pages(snap.ID))
	}
}

// A result whose dependency was never sent is not retried at a high rate.
func TestDelayOfWhatCameEarlyGrows(t *testing.T) {
	if a, b, last := soonAfter(1), soonAfter(2), soonAfter(1000); a != soon || b != 2*soon || last != later {
		t.Errorf("%v, %v, …, %v", a, b, last)
	}
}

var errSilent = errors.Join(errors.New("no answer"), backup.ErrUnavailable)
