package read

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A batch of another snapshot that takes for ever, for example because of its filer's limit, does
// not keep a batch from being stored.
func TestSnapshotsDoNotWaitForEachOther(t *testing.T) {
	packsStayOpen(t)
	f := newFixture(t, treetest.Tree{"a": treetest.File(random(1, 1<<20))})
	msg := f.batchOf("")
	s := f.newReader(Options{Linger: 50 * time.Millisecond})
	s.packer.join(backup.NewSnapshotID())
	ctx, cancel := context.WithTimeout(f.ctx, time.Minute)
	defer cancel()
	if err := s.try(ctx, msg); err != nil {
		t.Fatal(err)
	}
	f.commit()
	f.wantTree()
}

// A pack waits for more chunks while its snapshot's batches are being read, but not for ever, and
// less long if another snapshot relies on it.
func TestPacksAreDue(t *testing.T) {
	const linger = 100 * time.Millisecond
	f := newFixture(t, nil)
	now := time.Now()
	for _, test := range []struct {
		name             string
		use              use
		age              time.Duration
		awaited, hurried bool
		want             time.Duration // from now; negative: it is due
	}{
		{"a batch may add", use{batches: 1}, 0, false, false, maxPackAge},
		{"the last one has just ended", use{ended: now}, time.Second, false, false, linger},
		{"the last one ended earlier", use{ended: now.Add(-time.Second)}, 2 * time.Second, false, false, linger - time.Second},
		{"it was begun long ago", use{batches: 3}, maxPackAge - time.Second, false, false, time.Second},
		{"it was begun too long ago", use{ended: now}, maxPackAge, false, false, 0},
		{"another snapshot waits", use{batches: 1}, 0, true, false, maxPackAge / 10},
		{"another snapshot waits, and no batch may add", use{ended: now}, 0, true, false, linger},
		{"the reader stops", use{batches: 1}, 0, false, true, -1},
	} {
		s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{Linger: linger})
		snapshot := backup.NewSnapshotID()
		s.packer.addTo(f, snapshot, 1, 10)
		open := s.packer.open[snapshot]
		open.opened = now.Add(-test.age)
		open.ref.awaited.Store(test.awaited)
		s.packer.uses[snapshot] = test.use
		s.packer.hurried.Store(test.hurried)
		if got := s.packer.due(open).Sub(now); got != test.want && (test.want != -1 || got >= 0) {
			t.Errorf("%s: due in %v, want %v", test.name, got, test.want)
		}
	}
}

// A batch that relies on the open pack of another snapshot has it uploaded before long.
func TestPacksOfOthersAreAwaited(t *testing.T) {
	f := newFixture(t, nil)
	s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{})
	mine, other := backup.NewSnapshotID(), backup.NewSnapshotID()
	gone, cancel := context.WithCancel(f.ctx)
	cancel()
	for _, test := range []struct {
		of   backup.SnapshotID
		want bool
	}{{mine, false}, {other, true}} {
		ref := &packRef{id: backup.NewPackID(), snapshot: test.of, done: make(chan struct{})}
		if err := s.packer.await(gone, mine, ref); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, although the pack is not durable", err)
		}
		if ref.awaited.Load() != test.want || len(s.packer.changed) > 0 != test.want {
			t.Errorf("own pack %v: awaited %v, want %v", test.of == mine, ref.awaited.Load(), test.want)
		}
		close(ref.done)
		if err := s.packer.await(f.ctx, mine, ref); err != nil {
			t.Error(err)
		}
	}
}

// Nothing is remembered about snapshots that are no longer read.
func TestUsesAreForgotten(t *testing.T) {
	f := newFixture(t, nil)
	s := f.newReader(Options{})
	for range 100 {
		id := backup.NewSnapshotID()
		s.packer.join(id)
		s.packer.addTo(f, id, 1, 10)
		s.packer.leave(id)
	}
	f.until(func() bool { s.packer.using.Lock(); defer s.packer.using.Unlock(); return len(s.packer.uses) == 0 })
}

// While all uploads are in progress, batches can still begin, end, and rely on durable packs.
func TestSlowStoreBlocksOnlyNewChunks(t *testing.T) {
	packsStayOpen(t)
	f := newFixture(t, nil)
	hang := make(chan struct{})
	f.store.bad = []func(func() error) error{func(func() error) error { <-hang; return nil }}
	s := f.newReader(Options{Uploads: 1})
	snapshot := backup.NewSnapshotID()
	s.packer.join(snapshot)
	const frameBytes = 4 << 20
	var frames atomic.Int64
	added := make(chan struct{})
	go func() {
		defer close(added)
		for n := range 3 * pack.TargetBytes / frameBytes {
			s.packer.addTo(f, snapshot, n, frameBytes)
			frames.Add(1)
		}
	}()
	// The last frame of the second pack has to wait until the first pack is uploaded.
	f.until(func() bool { return frames.Load() == 2*pack.TargetBytes/frameBytes-1 && s.packer.isBlocked() })
	s.packer.durable(backup.NewPackID())
	s.packer.join(snapshot)
	s.packer.leave(snapshot)
	if !s.packer.isBlocked() {
		t.Error("chunks are added although no upload is free")
	}
	close(hang)
	<-added
}

// isBlocked reports whether a full pack waits for an upload.
func (p *packer) isBlocked() bool {
	if p.mu.TryLock() {
		p.mu.Unlock()
		return false
	}
	return true
}

// The committer drops the report of a pack that comes after the end of its snapshot. A batch of the
// next snapshot does not rely on that pack: it would be refused until the pack was given up.
func TestPacksOfEndedSnapshots(t *testing.T) {
	f := newFixture(t, treetest.Tree{"a": treetest.File(random(1, 1<<20))})
	sendPack := f.reader.sendPack
	f.reader.sendPack = func(context.Context, *backup.PackStored) error { return nil } // dropped
	f.reader.sendBatch = func(context.Context, *backup.BatchStored) error { return nil }
	f.read(f.batchOf(""))
	if err := f.idx.Fail(f.ctx, f.snap.ID, "for the test", time.Now()); err != nil {
		t.Fatal(err)
	}
	f.reader.sendPack = sendPack
	var result *backup.BatchStored
	f.reader.sendBatch = func(_ context.Context, m *backup.BatchStored) error { result = m; return nil }
	f.reader.known.age(registeredWithin)
	f.read(f.batchOf(""))
	if err := f.apply(index.Result{Batch: result}); err != nil {
		t.Fatal(err)
	}
	f.commit()
	f.wantTree()
}

// age makes the packs older.
func (k *known) age(by time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ref := range k.young {
		ref.reported = ref.reported.Add(-by)
	}
}
