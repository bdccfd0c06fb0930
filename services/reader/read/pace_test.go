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
	"github.com/bctl/bctl/internal/source/treetest"
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

// Budget that was not used while the batch did something else is used later, up to a small window.
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
	return &batch{pace: newPace(perSecond), msg: &backup.ReadBatch{}, svc: &Service{Parts: Parts{Report: flow.NewReporter(nil, "test")}}}
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
