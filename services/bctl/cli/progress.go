package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
)

// A tracker adds up the progress that workers report, and formats the progress of backups or of a
// restore.
type tracker struct {
	mu      sync.Mutex
	started time.Time
	now     func() time.Time
	parts   map[backup.SnapshotID]*part // of one snapshot, or of a restore: the zero ID's
	stalled map[stallKey]stallSeen
	ended   int // snapshots
	path    string
}

// A part is the progress of one snapshot or of a restore.
type part struct {
	// The counts of the previous snapshot: the expected amount until the walk has found it.
	lastFiles, lastBytes                         int64
	filesFound, bytesFound, filesDone, bytesDone int64
	errors                                       int64
}

// A stallKey identifies stalled work by snapshot and worker. A stallSeen is its amount, and the
// time of the report.
type stallKey struct {
	snapshot backup.SnapshotID
	worker   string
}

type stallSeen struct {
	work int
	at   time.Time
}

// stallsLast is how long a worker's report of stalls counts. Workers report every second.
const stallsLast = 5 * time.Second

func newTracker() *tracker {
	return &tracker{started: time.Now(), now: time.Now, parts: map[backup.SnapshotID]*part{}, stalled: map[stallKey]stallSeen{}}
}

// expect adds a snapshot with its expected amount.
func (t *tracker) expect(id backup.SnapshotID, files, bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.part(id)
	p.lastFiles, p.lastBytes = files, bytes
}

func (t *tracker) part(id backup.SnapshotID) *part {
	if t.parts[id] == nil {
		t.parts[id] = &part{}
	}
	return t.parts[id]
}

// add adds one worker's progress since its last report.
func (t *tracker) add(d backup.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.part(d.Snapshot)
	p.filesFound += d.FilesFound
	p.bytesFound += d.BytesFound
	p.filesDone += d.FilesDone
	p.bytesDone += d.BytesDone
	p.errors += d.Errors
	if d.Path != "" {
		t.path = d.Path
	}
	t.stalled[stallKey{d.Snapshot, d.Worker}] = stallSeen{len(d.StalledTasks) + len(d.StalledBatches), t.now()}
}

// addKnown is add for reports that may concern snapshots that are not followed.
func (t *tracker) addKnown(d *backup.Progress) {
	t.mu.Lock()
	_, known := t.parts[d.Snapshot]
	t.mu.Unlock()
	if known {
		t.add(*d)
	}
}

// set sets totals.
func (t *tracker) set(id backup.SnapshotID, files, bytes, errors int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.part(id)
	p.filesFound, p.filesDone, p.bytesFound, p.bytesDone, p.errors = files, files, bytes, bytes, errors
}

// at records the current path.
func (t *tracker) at(path string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.path = path
}

// end records that a snapshot has ended with the given counts.
func (t *tracker) end(id backup.SnapshotID, c *backup.Counts) {
	t.expect(id, 0, 0)
	t.set(id, c.Files, c.Bytes, c.Errors)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended++
}

// line returns the progress line. Snapshots, errors and stalls appear if they are not zero:
//
//	0:12  3 of 10 snapshots  1,234 of 5,678 files  12 MiB of 34 MiB  1.0 MiB/s  0:20 left  home/file
func (t *tracker) line() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	elapsed := t.now().Sub(t.started)
	var sum part
	for _, p := range t.parts {
		sum.lastFiles += max(p.filesFound, p.lastFiles)
		sum.lastBytes += max(p.bytesFound, p.lastBytes)
		sum.filesDone += p.filesDone
		sum.bytesDone += p.bytesDone
		sum.errors += p.errors
	}
	parts := []string{clock(elapsed)}
	if len(t.parts) > 1 {
		parts = append(parts, fmt.Sprintf("%s of %s snapshots", humanize.Comma(int64(t.ended)), humanize.Comma(int64(len(t.parts)))))
	}
	parts = append(parts,
		fmt.Sprintf("%s of %s", humanize.Comma(sum.filesDone), counted(sum.lastFiles, "file")),
		fmt.Sprintf("%s of %s", size(sum.bytesDone), size(sum.lastBytes)))
	if seconds := elapsed.Seconds(); seconds >= 1 {
		parts = append(parts, size(int64(float64(sum.bytesDone)/seconds))+"/s")
	}
	if left, ok := remaining(elapsed, share(sum.filesDone, sum.lastFiles), share(sum.bytesDone, sum.lastBytes)); ok {
		parts = append(parts, clock(left)+" left")
	}
	if sum.errors > 0 {
		parts = append(parts, counted(sum.errors, "error"))
	}
	if stalled := t.stalls(); stalled > 0 {
		parts = append(parts, fmt.Sprintf("%s stalled", humanize.Comma(int64(stalled))))
	}
	return strings.Join(append(parts, display(t.path)), "  ")
}

// stalls returns the amount of work that waits for a filer that does not respond.
func (t *tracker) stalls() (work int) {
	for key, s := range t.stalled {
		if s.work == 0 || t.now().Sub(s.at) > stallsLast {
			delete(t.stalled, key)
			continue
		}
		work += s.work
	}
	return work
}

func share(done, all int64) float64 {
	if all <= 0 {
		return 1
	}
	return float64(done) / float64(all)
}

// remaining extrapolates from both files and bytes, because both cost time.
func remaining(elapsed time.Duration, files, bytes float64) (time.Duration, bool) {
	done := (files + bytes) / 2
	if elapsed < 2*time.Second || done < 0.01 || done >= 1 {
		return 0, false
	}
	return time.Duration(float64(elapsed) * (1 - done) / done), true
}

// clock formats a duration in minutes and seconds, with hours if necessary.
func clock(d time.Duration) string {
	s := int64(max(d, 0).Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

func size(bytes int64) string { return humanize.IBytes(uint64(max(bytes, 0))) }
