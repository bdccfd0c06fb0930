package read

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
)

var errPower = errors.New("the power went")

// Each durable write fails in two ways: lost, and applied nevertheless. In both cases no batch that
// relies on the pack is answered, and the next attempt stores the content again.
func TestPutFails(t *testing.T) {
	for name, fault := range map[string]func(put func() error) error{
		"lost": func(func() error) error { return errPower },
		"applied, then an error": func(put func() error) error {
			if err := put(); err != nil {
				return err
			}
			return errPower
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, treetest.Tree{"a": treetest.File(random(1, 5<<20)), "b": treetest.File("b")})
			f.store.bad = []func(func() error) error{fault}
			msg := f.batchOf("")
			if err := f.reader.try(f.ctx, msg); !errors.Is(err, errPower) {
				t.Fatalf("error %v, want that of the Put", err)
			}
			if s := must(f.idx.Snapshot(f.ctx, f.snap.ID))(t); s.Complete() {
				t.Fatal("the batch is settled")
			}
			f.read(msg) // delivered again, as the same attempt
			f.commit()
			f.wantTree()
		})
	}
}

// Many batches have their content in one pack; if it cannot be put, all fail.
func TestAllBatchesOfALostPackFail(t *testing.T) {
	f := newFixture(t, treetest.Tree{
		"a": treetest.Dir(), "a/1": treetest.File("one"), "b": treetest.Dir(), "b/2": treetest.File("two"), "c": treetest.Dir(), "c/3": treetest.File("one"),
	})
	f.reader = f.newReader(Options{Linger: 50 * time.Millisecond})
	f.begin()
	f.announce(f.pagesOf("a"), f.pagesOf("b"), f.pagesOf("c"), f.pagesOf(""))
	messages := []*backup.ReadBatch{f.claim(), f.claim(), f.claim(), f.claim()}
	f.store.bad = []func(func() error) error{func(func() error) error { return errPower }}
	f.reader.packer.join(f.snap.ID) // so that nothing is flushed before all batches are read
	errs := f.readAll(messages, func() { f.reader.packer.leave(f.snap.ID) })
	for i, err := range errs[:3] {
		if !errors.Is(err, errPower) {
			t.Errorf("batch %d: error %v", i, err)
		}
	}
	if errs[3] != nil {
		t.Errorf("the batch that relies on nothing: %v", errs[3])
	}
	for i, err := range f.readAll(messages[:3], func() {}) {
		if err != nil {
			t.Errorf("batch %d, tried again: %v", i, err)
		}
	}
	f.commit()
	f.wantTree()
}

// readAll reads batches concurrently; released is called when all have been read.
func (f *fixture) readAll(messages []*backup.ReadBatch, released func()) []error {
	ctx, cancel := context.WithTimeout(f.ctx, time.Minute)
	defer cancel()
	errs := make([]error, len(messages))
	var all sync.WaitGroup
	for i, msg := range messages {
		all.Go(func() { errs[i] = f.reader.try(ctx, msg) })
	}
	for (f.reader.known.count() == 0 || f.reader.packer.busy() > 1) && ctx.Err() == nil {
		_, _ = f.idx.InHand(ctx, time.Now(), 1) // a query that sets the pace
	}
	released()
	all.Wait()
	return errs
}

func (k *known) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.young)
}

// busy returns the number of batches that may add to packs.
func (p *packer) busy() (n int) {
	p.using.Lock()
	defer p.using.Unlock()
	for _, u := range p.uses {
		n += u.batches
	}
	return n
}

// A slow store blocks batches that add chunks, but not those that wait for their packs; a reader
// whose store hangs can be stopped.
func TestPutHangs(t *testing.T) {
	f := newFixture(t, treetest.Tree{"a": treetest.File(random(1, 36<<20))})
	release := make(chan struct{})
	hang := func(put func() error) error { <-release; return put() }
	f.store.bad = []func(func() error) error{hang}
	ctx, cancel := context.WithCancel(f.ctx)
	msg, result := f.batchOf(""), make(chan error, 1)
	go func() { result <- f.reader.try(ctx, msg) }()
	for f.store.putsSoFar() == 0 {
		_, _ = f.idx.InHand(f.ctx, time.Now(), 1) // a query that sets the pace
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	close(release)
	f.read(msg)
	f.commit()
	f.wantTree()
}

// Two readers find the same content at the same time, and each stores it. Each page of both can be
// read back, from the location that the index has kept.
func TestTwoReadersOfTheSameContent(t *testing.T) {
	same := random(1, 6<<20)
	f := newFixture(t, treetest.Tree{
		"a": treetest.Dir(), "a/1": treetest.File(same), "a/2": treetest.File("same"), "a/3": treetest.File("a"),
		"b": treetest.Dir(), "b/1": treetest.File(same), "b/2": treetest.File("same"), "b/3": treetest.File("b"),
	})
	f.begin()
	f.announce(f.pagesOf("a"), f.pagesOf("b"))
	messages := []*backup.ReadBatch{f.claim(), f.claim()}
	readers := []*Service{f.newReader(Options{}), f.newReader(Options{})}
	var both sync.WaitGroup
	for i, msg := range messages {
		both.Go(func() {
			if err := readers[i].try(f.ctx, msg); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	f.commit()
	f.wantTree()
}

// If a pack is condemned after it was found, the batch is read again, and its content is stored
// again (I6).
func TestCondemnedPackIsNotReliedOn(t *testing.T) {
	f := newFixture(t, treetest.Tree{"a": treetest.File("content"), "b": treetest.File(random(1, 2<<20))})
	f.read(f.batchOf(""))
	f.commit()
	firstSnapshot := f.snap.ID
	var first []backup.PackID
	for _, e := range f.entries() {
		f.chunk(e.Content.Refs[0].Chunk)
	}
	for id := range f.packs {
		first = append(first, id)
	}
	// The reader still remembers the chunks.
	msg := f.batchOf("")
	if err := indextest.Condemn(f.ctx, f.idx, first...); err != nil {
		t.Fatal(err)
	}
	if err := f.reader.try(f.ctx, msg); !errors.Is(err, index.ErrCondemned) {
		t.Fatalf("error %v, want ErrCondemned", err)
	}
	again := f.claim()
	if again.Attempt != 2 {
		t.Errorf("attempt %d", again.Attempt)
	}
	f.read(again)
	f.commit()
	for _, id := range first { // as garbage collection would
		if err := f.store.Delete(f.ctx, store.PackName(firstSnapshot, id)); err != nil {
			t.Fatal(err)
		}
	}
	clear(f.packs)
	f.wantTree()
}

// If a pack cannot be reported to the committer for a while, the batch waits.
func TestPackIsToldUntilItIsTaken(t *testing.T) {
	f := newFixture(t, treetest.Tree{"a": treetest.File("content")})
	tell, tries := f.reader.sendPack, 0
	f.reader.sendPack = func(ctx context.Context, m *backup.PackStored) error {
		if tries++; tries == 1 {
			return backup.ErrUnavailable
		}
		return tell(ctx, m)
	}
	f.read(f.batchOf(""))
	f.commit()
	f.wantTree()
}

// An intruder on a reader's machine gets its key, but cannot read the content of the store with it
// (I8).
func TestWorkerKeyOpensNothing(t *testing.T) {
	const secret = "a secret that would be found in a pack"
	f := newFixture(t, treetest.Tree{"a": treetest.File(secret)})
	f.read(f.batchOf(""))
	f.commit()
	f.wantTree()
	text := must(f.key.MarshalText())(t)
	if _, err := seal.NewOpener(text); err == nil {
		t.Error("the worker key is an identity")
	}
	identity, _, err := seal.GenerateIdentity()
	if err != nil {
		t.Fatal(err)
	}
	other := must(seal.NewOpener([]byte(identity)))(t)
	for id := range f.packs {
		name := store.PackName(f.snap.ID, id)
		if _, err := pack.Open(f.ctx, f.store, pack.Place{Object: name}, f.repo.ID, id, other); !errors.Is(err, backup.ErrWrongKey) {
			t.Errorf("error %v, want ErrWrongKey", err)
		}
		data := must(f.store.Get(f.ctx, name, pack.MaxBytes))(t)
		if bytes.Contains(data, []byte(secret)) || bytes.Contains(data, f.key.Dedup[:]) {
			t.Error("the pack has it as plain text")
		}
	}
}
