package read

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/stall"
)

// A readLog records the time and size of reads.
type readLog struct {
	io.ReaderAt
	read func(n int)
}

func (l readLog) ReadAt(p []byte, offset int64) (int, error) {
	n, err := l.ReaderAt.ReadAt(p, offset)
	l.read(n)
	return n, err
}

func TestPaceIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond, size = 1 << 20, 10<<20 + 1000
		started, total := time.Now(), 0
		file := readLog{bytes.NewReader(make([]byte, size)), func(n int) {
			total += n
			if most := time.Since(started).Seconds() * perSecond; float64(total) > most+1 {
				t.Fatalf("%d bytes after %v", total, time.Since(started))
			}
		}}
		b := pacedBatch(perSecond)
		n, err := b.readFull(t.Context(), file, make([]byte, size+1), 0)
		if n != size || err != nil {
			t.Fatalf("%d bytes, error %v", n, err)
		}
		if took := time.Since(started).Seconds(); math.Abs(took-float64(size)/perSecond) > 0.25 {
			t.Errorf("%d bytes took %v s", size, took)
		}
	})
}

// Budget that was not used while the batch did something else is used later, up to a small buffer.
func TestPaceSavesUpLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perSecond = 1 << 20
		b := pacedBatch(perSecond)
		<-time.After(time.Hour)
		started := time.Now()
		if _, err := b.readFull(t.Context(), bytes.NewReader(make([]byte, 3<<20)), make([]byte, 3<<20), 0); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(started).Seconds(); math.Abs(took-2) > 0.01 {
			t.Errorf("3 MiB took %v s, want 2", took)
		}
	})
}

func TestPaceEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		b := pacedBatch(1)
		if _, err := b.readFull(ctx, bytes.NewReader(make([]byte, 1000)), make([]byte, 1000), 0); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

func pacedBatch(perSecond int64) *batch {
	s := &Service{Parts: Parts{Report: flow.NewReporter(nil, "test")}, watch: stall.NewWatch(time.Hour, 1)}
	return s.begin(&backup.ReadBatch{Job: backup.Job{ReadBytesPerSecond: perSecond}}, nil)
}

// A limit that changes applies to a batch that waits under the earlier one: looser, tighter, none,
// and one where there was none.
func TestPaceChanges(t *testing.T) {
	for _, test := range []struct {
		name         string
		before, then int64 // bytes per second, for 10 s and from then on
		size         int   // read in all
		want         float64
	}{
		{"looser", 64 << 10, 1 << 20, 10<<20 + 640<<10, 20},
		{"tighter", 1 << 20, 64 << 10, 10<<20 + 640<<10, 20},
		{"not any more", 64 << 10, 0, 100 << 20, 10},
		{"looser than one byte a second", 1, 1 << 20, 1 << 20, 11},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := pacedBatch(test.before)
				started := time.Now()
				time.AfterFunc(10*time.Second, func() { b.pace.set(test.then) })
				n, err := b.readFull(t.Context(), bytes.NewReader(make([]byte, test.size)), make([]byte, test.size), 0)
				if n != test.size || err != nil {
					t.Fatalf("%d bytes, error %v", n, err)
				}
				if took := time.Since(started).Seconds(); math.Abs(took-test.want) > 0.5 {
					t.Errorf("%d bytes took %v s, want %v", n, took, test.want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		b := pacedBatch(0)
		read := 0
		file := readLog{bytes.NewReader(make([]byte, 4<<20)), func(n int) { read += n }}
		if _, err := b.readFull(t.Context(), file, make([]byte, 1<<20), 0); err != nil || read != 1<<20 {
			t.Fatalf("%d bytes, error %v", read, err)
		}
		b.pace.set(1 << 20)
		started := time.Now()
		if _, err := b.readFull(t.Context(), file, make([]byte, 3<<20), 1<<20); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(started).Seconds(); math.Abs(took-3) > 0.01 {
			t.Errorf("3 MiB under a limit that was set meanwhile took %v s, want 3", took)
		}
	})
}

// Frequent changes keep what a batch has waited for, so that it gets on at the mean of the limits.
func TestPaceOftenChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := pacedBatch(32 << 10)
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			for n := int64(0); ctx.Err() == nil; n++ {
				b.pace.set(32<<10 + n%2)
				loop.Pause(ctx, time.Second)
			}
		}()
		started := time.Now()
		if _, err := b.readFull(t.Context(), bytes.NewReader(make([]byte, 1<<20)), make([]byte, 1<<20), 0); err != nil {
			t.Fatal(err)
		}
		stop()
		if took := time.Since(started).Seconds(); math.Abs(took-32) > 1 {
			t.Errorf("1 MiB took %v s, want 32", took)
		}
	})
}

// A reader asks for the limits of the filers whose batches it has in hand, and applies them.
func TestLimitsAreFollowed(t *testing.T) {
	f := newFixture(t, treetest.Tree{"file": treetest.File("content")})
	s := f.makeReader(Parts{Report: flow.NewReporter(nil, "test")}, Options{})
	b := s.begin(f.batchOf(""), nil)
	share := func() float64 {
		s.applyLimits(f.ctx)
		if !b.pace.limited() {
			return 0
		}
		return float64(b.pace.limiter.Limit())
	}
	if got := share(); got != 0 {
		t.Fatalf("%v bytes a second, want no limit", got)
	}
	filers, err := f.idx.ListFilers(f.ctx, index.FilerFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, rate := range []int64{1 << 20, 40_000, 2 << 20, 0, 1} {
		filer := filers[0].Filer
		filer.Limits.ReadBytesPerSecond = rate
		if err := f.idx.SetFiler(f.ctx, filer); err != nil {
			t.Fatal(err)
		}
		if got := share(); got != float64(rate) {
			t.Errorf("%v bytes a second, want %v", got, rate)
		}
	}
	b.end()
	if got := s.filers(); len(got) != 0 {
		t.Errorf("filers %v without a batch", got)
	}
}

// A batch's limit holds for everything that it reads, from small files and large.
func TestBatchWithALimitReadsInPieces(t *testing.T) {
	f := newFixture(t, treetest.Tree{"large": treetest.File(random(1, 3<<20)), "small": treetest.File(random(2, 900<<10))})
	largest := map[string]int{}
	f.unsteady().sawRead = func(name string, n int) { largest[name] = max(largest[name], n) }
	msg := f.batchOf("")
	msg.Job.ReadBytesPerSecond = 1 << 40
	f.read(msg)
	f.commit()
	f.wantTree()
	if largest["large"] != paceBytes || largest["small"] != paceBytes {
		t.Errorf("largest reads: %v", largest)
	}
}
