package walk

import (
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/stall"
)

// A slice reads as many directories at a time as permitted, and all tasks of one filer together no
// more.
func TestDirectoriesAtATime(t *testing.T) {
	const atATime = 4
	tree := treetest.Tree{}
	for i := range 3 * atATime {
		tree[fmt.Sprintf("dir-%d/sub/file", i)] = treetest.File("x")
	}
	f := newFixture(t, tree)
	f.svc.opts.Directories, f.svc.directories = atATime, stall.NewSlots(math.MaxInt, atATime)
	var mu sync.Mutex
	var now, most int
	all := make(chan struct{}) // closed when this many are read at once
	allOnce := sync.OnceFunc(func() { close(all) })
	f.svc.source = &hookedSource{Source: posix.New(posix.Options{}), onDirectory: func(_, path string) {
		if path == "" {
			return
		}
		mu.Lock()
		now++
		most = max(most, now)
		if now == atATime {
			allOnce()
		}
		mu.Unlock()
		receive(t, "other directories", all)
		mu.Lock()
		now--
		mu.Unlock()
	}}
	task := *f.rootTask()
	var tasks sync.WaitGroup
	for range 2 {
		tasks.Go(func() {
			if err := f.walk(t.Context(), &task); err != nil {
				t.Error(err)
			}
		})
	}
	tasks.Wait()
	if most != atATime {
		t.Errorf("%d directories were read at a time, want %d", most, atATime)
	}
}
