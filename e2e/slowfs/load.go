//go:build linux

package slowfs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Counters are numbers of requests since the file system was mounted.
type Counters struct {
	Stats     int64 // LOOKUPs, and GETATTRs that do not follow a LOOKUP of the same file
	Lookups   int64
	Getattrs  int64 // all
	Opens     int64 // of files
	Reads     int64
	ReadBytes int64
	Lists     int64 // pages of directories
	Readlinks int64
	Xattrs    int64
}

// A kind of request has its latency and its counter.
type kind int

const (
	lookup kind = iota
	getattr
	open
	read
	list
	readlink
	xattr
	openDirectory // these two take no time
	seek
	kinds
)

// A Request is a kind of request to a file system.
type Request kind

// The requests that can fail (FS.Fail).
const (
	Lookup        = Request(lookup) // of a name; the path is the name's
	Getattr       = Request(getattr)
	Open          = Request(open) // of a file
	OpenDirectory = Request(openDirectory)
	Read          = Request(read)
	Seek          = Request(seek)
	List          = Request(list)
	Readlink      = Request(readlink)
	Xattr         = Request(xattr)
)

// A fault is an error in the place of the answer to a request.
type fault struct {
	kind kind
	path string
}

func (l *Latency) of(k kind) time.Duration {
	switch k {
	case open:
		return l.Open
	case read:
		return l.Read
	case list:
		return l.List
	}
	return l.Stat
}

// A load makes requests take their time.
type load struct {
	requests         [kinds]atomic.Int64
	stats, readBytes atomic.Int64
	inFlight, peak   atomic.Int64
	closed           chan struct{} // what waits returns then
	closeOnce        sync.Once
	mu               sync.Mutex
	latency          Latency
	free             []time.Time // when each of those that serve has nothing to do; empty: any number serve
	hung             []string    // paths of which no request is answered
	faults           map[fault]syscall.Errno
	released         chan struct{}
}

func newLoad(o Options) *load {
	l := &load{latency: o.Latency, closed: make(chan struct{}), released: make(chan struct{})}
	l.setParallel(o.Parallel)
	return l
}

func (l *load) setLatency(latency Latency) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latency = latency
}

func (l *load) setParallel(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = make([]time.Time, n)
}

func (l *load) hang(path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hung = append(l.hung, strings.Trim(path, "/"))
}

func (l *load) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hung = nil
	close(l.released)
	l.released = make(chan struct{})
}

// fail has a request fail until lift is called.
func (l *load) fail(f fault, errno syscall.Errno) (lift func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.faults == nil {
		l.faults = map[fault]syscall.Errno{}
	}
	l.faults[f] = errno
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.faults, f)
	}
}

// fault is the error of a request that is to fail.
func (l *load) fault(r request) fuse.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) == 0 {
		return fuse.OK
	}
	return fuse.Status(l.faults[fault{r.kind, r.node.shownPath(r.name)}])
}

func (l *load) close() { l.closeOnce.Do(func() { close(l.closed) }) }

func (l *load) counters() Counters {
	return Counters{
		Stats: l.stats.Load(), Lookups: l.requests[lookup].Load(), Getattrs: l.requests[getattr].Load(),
		Opens: l.requests[open].Load(), Reads: l.requests[read].Load(), ReadBytes: l.readBytes.Load(),
		Lists: l.requests[list].Load(), Readlinks: l.requests[readlink].Load(), Xattrs: l.requests[xattr].Load(),
	}
}

func (l *load) takePeak() int { return int(l.peak.Swap(l.inFlight.Load())) }

// A request is a request to the filer.
type request struct {
	kind   kind
	node   *node
	name   string // below node, of a lookup
	free   bool   // takes no time
	pid    uint32 // of the thread that asks
	cancel <-chan struct{}
}

// serve returns when the filer has an answer. It fails when the file system
// is unmounted, or when it hangs and the calling process is killed.
func (l *load) serve(r request) fuse.Status {
	if status := l.fault(r); !status.Ok() {
		return status
	}
	l.requests[r.kind].Add(1)
	if !r.free && (r.kind == lookup || r.kind == getattr) {
		l.stats.Add(1)
	}
	now := l.inFlight.Add(1)
	defer l.inFlight.Add(-1)
	for peak := l.peak.Load(); now > peak && !l.peak.CompareAndSwap(peak, now); {
		peak = l.peak.Load()
	}
	for {
		until, released := l.admit(r)
		if released == nil {
			return l.wait(until)
		}
		if status := l.waitReleased(r, released); !status.Ok() {
			return status
		}
	}
}

// admit returns the time of the answer. If released is not nil, there is no answer before it is
// closed.
func (l *load) admit(r request) (until time.Time, released <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.hung) > 0 && l.hangs(r.node.shownPath(r.name)) {
		return time.Time{}, l.released
	}
	service := l.latency.of(r.kind)
	if r.free || service == 0 {
		return time.Time{}, nil
	}
	now := time.Now()
	if len(l.free) == 0 {
		return now.Add(service), nil
	}
	first := 0
	for i := range l.free {
		if l.free[i].Before(l.free[first]) {
			first = i
		}
	}
	if l.free[first].Before(now) {
		l.free[first] = now
	}
	l.free[first] = l.free[first].Add(service)
	return l.free[first], nil
}

func (l *load) hangs(path string) bool {
	for _, hung := range l.hung {
		if rest, ok := strings.CutPrefix(path, hung); ok && (hung == "" || rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
}

// wait does not heed interrupts: Go's runtime interrupts its own threads all the time.
func (l *load) wait(until time.Time) fuse.Status {
	if until.IsZero() {
		return fuse.OK
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return fuse.OK
	case <-l.closed:
		return fuse.EIO
	}
}

// killedEvery is how often an interrupted process is examined. The kernel reports only its first
// signal, which may not be the one that kills it.
const killedEvery = 20 * time.Millisecond

func (l *load) waitReleased(r request, released <-chan struct{}) fuse.Status {
	select {
	case <-released:
		return fuse.OK
	case <-l.closed:
		return fuse.EIO
	case <-r.cancel:
	}
	tick := time.NewTicker(killedEvery)
	defer tick.Stop()
	for !killed(r.pid) {
		select {
		case <-released:
			return fuse.OK
		case <-l.closed:
			return fuse.EIO
		case <-tick.C:
		}
	}
	return fuse.EINTR
}

// killed reports whether a thread has a SIGKILL pending, or is gone.
func killed(pid uint32) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return pid != 0 // 0: of another PID namespace, of which nothing is known
	}
	const bit = 1 << (9 - 1) // of SIGKILL
	for line := range bytes.Lines(text) {
		name, value, _ := strings.Cut(string(line), ":")
		if name == "SigPnd" || name == "ShdPnd" {
			pending, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err == nil && pending&bit != 0 {
				return true
			}
		}
	}
	return false
}
