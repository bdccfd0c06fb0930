//go:build linux

package nfs

import (
	"sync"
	"time"
)

const (
	// keptMost bounds each of the two generations of kept handles. One takes about 300 bytes.
	keptMost = 32 << 10
	// keptFor is for how long a handle stands for a path.
	keptFor = 5 * time.Minute
)

// keptHandles are the subdirectories of directories that were listed. The walk opens each of them
// once, so a handle is forgotten when it is taken. The oldest are forgotten when there are too
// many.
type keptHandles struct {
	mu       sync.Mutex
	new, old map[string]kept
}

// A kept node is a directory as its own directory listed it.
type kept struct {
	node node
	at   time.Time
}

func (k *keptHandles) put(path string, n node, at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.new == nil {
		k.new = map[string]kept{}
	}
	if len(k.new) >= keptMost {
		k.old, k.new = k.new, map[string]kept{}
	}
	k.new[path] = kept{n, at}
}

func (k *keptHandles) take(path string) (found kept, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if found, ok = k.new[path]; ok {
		delete(k.new, path)
	} else if found, ok = k.old[path]; ok {
		delete(k.old, path)
	}
	return found, ok && time.Since(found.at) < keptFor
}
