package read

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/source/treetest"
)

var errIndexAway = fmt.Errorf("index at db1: %w: connection refused", backup.IndexAway)

// A badIndex fails queries while fail returns an error.
type badIndex struct {
	Index
	fail func() error
}

func (b badIndex) Locate(ctx context.Context, ids []backup.ChunkID) ([]index.Location, error) {
	if err := b.fail(); err != nil {
		return nil, err
	}
	return b.Index.Locate(ctx, ids)
}

func (b badIndex) PageKeys(ctx context.Context, shard backup.ShardID, base backup.SnapshotNumber, path string) ([]backup.PageKey, error) {
	if err := b.fail(); err != nil {
		return nil, err
	}
	return b.Index.PageKeys(ctx, shard, base, path)
}

// While a batch is read, the index does not answer for a while: when its content is stored, and
// when the last copy of a file that cannot be read is looked for. Nothing is read twice.
func TestOutageOfTheIndexCostsNoBatch(t *testing.T) {
	f := newFixture(t, treetest.Tree{"bad": treetest.File("bad"), "big": treetest.File(random(1, 5<<20))})
	f.read(f.batchOf(""))
	f.commit()
	source := f.unsteady()
	opened := 0
	source.onOpen["big"] = func() error { opened++; return nil }
	source.onOpen["bad"] = func() error { return fs.ErrPermission }
	treetest.Make(t, f.dir, treetest.Tree{"big": treetest.File(random(2, 5<<20))})

	var mu sync.Mutex
	asked := 0
	f.reader.Index = patient{badIndex{f.idx, func() error {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked <= 2 {
			return errIndexAway
		}
		return nil
	}}, f.reader}
	f.read(f.batchOf(""))
	f.commit()
	if opened != 1 {
		t.Errorf("the file was opened %d times", opened)
	}
	if asked <= 2 {
		t.Errorf("the index was asked %d times", asked)
	}
	if e := f.entries()["bad"]; e.Flags&backup.Unreadable == 0 || e.Flags&backup.ContentMissing != 0 {
		t.Errorf("the last copy was not kept: %+v", e)
	}
}

// A batch whose content cannot be stored is not read to its end, and no file of it is blamed.
func TestBatchThatCannotBeStoredIsNotReadOn(t *testing.T) {
	f := newFixture(t, treetest.Tree{
		"1": treetest.File(random(1, 20<<20)), "2": treetest.File(random(2, 20<<20)), "3": treetest.File("3"),
	})
	source := f.unsteady()
	msg := f.batchOf("")
	b := f.reader.begin(msg, nil)
	defer b.end()
	source.onOpen["2"] = func() error {
		f.until(func() bool { return b.notStored() != nil })
		return nil
	}
	source.onOpen["3"] = func() error {
		t.Error("the batch is read on")
		return nil
	}
	fail := errPower
	good := f.reader.Index
	f.reader.Index = patient{badIndex{f.idx, func() error { return fail }}, f.reader}
	if err := f.reader.attempt(f.ctx, f.ctx, b); !errors.Is(err, errPower) || err.Error() != errPower.Error() {
		t.Errorf("error %v", err)
	}
	if b.counts.Errors != 0 {
		t.Errorf("files are blamed: %v", b.problems)
	}
	delete(source.onOpen, "2")
	delete(source.onOpen, "3")
	f.reader.Index = good
	f.read(msg)
	f.commit()
	f.wantTree()
}

// Patience ends: with an answer, with any other error, with the context, and after indexRetryFor.
func TestPatienceEnds(t *testing.T) {
	for name, test := range map[string]struct {
		errs []error // of the queries in order; the last one is repeated
		end  time.Duration
		want error
		took time.Duration
	}{
		"an answer":     {errs: []error{errIndexAway, errIndexAway, nil}, took: 2 * retryDelay},
		"another error": {errs: []error{errIndexAway, errPower}, want: errPower, took: retryDelay},
		"the end":       {errs: []error{errIndexAway}, end: time.Minute, want: context.Canceled, took: time.Minute},
		"too long":      {errs: []error{errIndexAway}, want: errIndexAway, took: indexRetryFor},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.end > 0 {
					time.AfterFunc(test.end, cancel)
				}
				waited := 0
				s := &Service{opts: Options{OnRetry: func(error) { waited++ }}}
				began, asked := time.Now(), 0
				_, err := patiently(ctx, s, func() (int, error) {
					asked++
					return 0, test.errs[min(asked, len(test.errs))-1]
				})
				if !errors.Is(err, test.want) || (err == nil) != (test.want == nil) {
					t.Errorf("error %v, want %v", err, test.want)
				}
				if took := time.Since(began); took != test.took {
					t.Errorf("it took %v, want %v", took, test.took)
				}
				if waited != asked-1 {
					t.Errorf("%d waits were reported, of %d", waited, asked-1)
				}
			})
		})
	}
}
