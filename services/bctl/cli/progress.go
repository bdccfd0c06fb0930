package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
)

// A tracker adds up what workers tell, and says how far a backup or restore is.
type tracker struct {
	mu                                           sync.Mutex
	started                                      time.Time
	now                                          func() time.Time
	lastFiles, lastBytes                         int64 // of the previous snapshot: what to expect before it is found
	filesFound, bytesFound, filesDone, bytesDone int64
	errors                                       int64
	path                                         string
}

func newTracker(expectFiles, expectBytes int64) *tracker {
	return &tracker{started: time.Now(), now: time.Now, lastFiles: expectFiles, lastBytes: expectBytes}
}

// add takes what one worker did since it last told.
func (t *tracker) add(p backup.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.filesFound += p.FilesFound
	t.bytesFound += p.BytesFound
	t.filesDone += p.FilesDone
	t.bytesDone += p.BytesDone
	t.errors += p.Errors
	if p.Path != "" {
		t.path = p.Path
	}
}

// set takes totals.
func (t *tracker) set(files, bytes int64, path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.filesFound, t.filesDone, t.bytesFound, t.bytesDone, t.path = files, files, bytes, bytes, path
}

// line is the progress line:
//
//	0:12  1,234 of 5,678 files  12 MiB of 34 MiB  1.0 MiB/s  0:20 left  home/user/file
func (t *tracker) line() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	elapsed := t.now().Sub(t.started)
	files, bytes := max(t.filesFound, t.lastFiles), max(t.bytesFound, t.lastBytes)
	parts := []string{
		clock(elapsed),
		fmt.Sprintf("%s of %s files", humanize.Comma(t.filesDone), humanize.Comma(files)),
		fmt.Sprintf("%s of %s", size(t.bytesDone), size(bytes)),
	}
	if seconds := elapsed.Seconds(); seconds >= 1 {
		parts = append(parts, size(int64(float64(t.bytesDone)/seconds))+"/s")
	}
	if left, ok := remaining(elapsed, share(t.filesDone, files), share(t.bytesDone, bytes)); ok {
		parts = append(parts, clock(left)+" left")
	}
	if t.errors > 0 {
		parts = append(parts, fmt.Sprintf("%s errors", humanize.Comma(t.errors)))
	}
	return strings.Join(append(parts, display(t.path)), "  ")
}

func share(done, all int64) float64 {
	if all <= 0 {
		return 1
	}
	return float64(done) / float64(all)
}

// remaining extrapolates: files cost time and bytes do, so both shares count.
func remaining(elapsed time.Duration, files, bytes float64) (time.Duration, bool) {
	done := (files + bytes) / 2
	if elapsed < 2*time.Second || done < 0.01 || done >= 1 {
		return 0, false
	}
	return time.Duration(float64(elapsed) * (1 - done) / done), true
}

// clock writes a duration as minutes and seconds, with hours where there are any.
func clock(d time.Duration) string {
	s := int64(d.Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

func size(bytes int64) string { return humanize.IBytes(uint64(max(bytes, 0))) }
