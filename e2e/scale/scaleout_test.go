//go:build linux

package scale_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/e2e/slowfs"
)

var (
	treeDirectories = flag.Int("directories", 7000, "of the tree that is walked")
	statLatency     = flag.Duration("stat", 2*time.Millisecond, "latency of a stat")
	fleetSizes      = flag.String("walkers", "1,2,4,8", "numbers of walkers, ascending")
	timeline        = flag.Bool("timeline", false, "log how many entries were walked in each quarter of a second")
)

const (
	filesInDirectory = 20
	topDirectories   = 50
	// inFlight is how many stats one walker has under way: it reads one
	// directory's entries one after the other.
	inFlight = 8
	// minScaleOut is how many times as fast eight walkers must be as one.
	minScaleOut = 7
)

// makeTree makes directories in two levels, of empty files: the walk is all there is to do.
func makeTree(b *testing.B, directories int) (root string, entries int) {
	b.Helper()
	root = filepath.Join(b.TempDir(), "tree")
	for i := range directories {
		dir := filepath.Join(root, fmt.Sprintf("top%03d", i%topDirectories), fmt.Sprintf("directory%05d", i))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range filesInDirectory {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("file%05d.txt", j)), nil, 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	return root, 1 + min(topDirectories, directories) + directories*(1+filesInDirectory)
}

// quiet is for what is measured: the harness has the services log all that they do.
const quiet = "BCTL_LOG_LEVEL=warn"

// newFleet has one reader and one committer, which has settings of its own, and no walker yet.
func newFleet(b *testing.B, committer ...string) *fleet.Fleet {
	b.Helper()
	f := fleet.New(b, fleet.Options{Walkers: -1, Readers: -1, Committers: -1, S3: true})
	f.Readers = append(f.Readers, f.Service("reader", quiet))
	f.Committers = append(f.Committers, f.Service("committer", append(committer, quiet)...))
	return f
}

func addWalkers(f *fleet.Fleet, n int) {
	for len(f.Walkers) < n {
		f.Walkers = append(f.Walkers, f.Service("walker", quiet, fmt.Sprintf("BCTL_WORKER_DIRECTORIES=%d", inFlight)))
	}
}

// measure backs a shard up and returns how fast it was walked. Readers, which stat
// too, begin when the walk is over.
func measure(b *testing.B, f *fleet.Fleet, filer *slowfs.FS) (walk, fleet.Summary) {
	b.Helper()
	for _, reader := range f.Readers {
		reader.Pause()
	}
	filer.SetLatency(slowfs.Latency{Stat: *statLatency, List: *statLatency})
	m := startMeter(filer)
	backup, _ := f.StartBackupOf("--filer", "slow", "--shard", filer.Dir)
	fleet.Await(b, "the end of the walk", func() bool {
		w := f.Index.Work()
		return w.State != "running" || w.TasksAnnounced == w.TasksSettled
	})
	m.end()
	filer.SetLatency(slowfs.Latency{}) // what is left to do is not measured
	for _, reader := range f.Readers {
		reader.Resume()
	}
	out := backup.Wait()
	if out.Status != 0 {
		b.Fatalf("%s", out)
	}
	if *timeline {
		logTimeline(b, m)
	}
	return m.walk(), out.Summary(b)
}

func logTimeline(b *testing.B, m *meter) {
	b.Helper()
	const step = 250 * time.Millisecond
	first, last := m.reached(1), m.reached(m.total())
	for from := first; from.Before(last); from = from.Add(step) {
		b.Logf("%5.2f s %7.0f/s", from.Sub(first).Seconds(), m.rate(from, from.Add(step)))
	}
}

// BenchmarkScaleOut walks one shard of a filer whose stats take 2 ms, with 1, 2,
// 4 and 8 walkers of 8 stats in flight each.
func BenchmarkScaleOut(b *testing.B) {
	for range b.N {
		scaleOut(b)
	}
}

func scaleOut(b *testing.B) {
	tree, entries := makeTree(b, *treeDirectories)
	// Work that waits for a paused reader is not handed out again.
	f := newFleet(b, "BCTL_WORKER_QUEUE_LEASE=10m")
	f.Filer("slow", "--walk-tasks", "128")
	r := newReport(b, "scale-out")
	rows := [][]string{{"walkers", "snapshot", "walk s", "entries/s", "× 1 walker", "sustained entries/s", "× 1 walker"}}
	alone := map[string]walk{}
	for size := range strings.SplitSeq(*fleetSizes, ",") {
		walkers, err := strconv.Atoi(size)
		if err != nil {
			b.Fatalf("-walkers: %v", err)
		}
		addWalkers(f, walkers)
		// Each has a mount of its own, and so a shard that was never walked.
		filer := slowfs.Mount(b, tree, slowfs.Options{AttrTimeout: time.Second})
		f.Shard("slow", filer.Dir)
		for _, snapshot := range []string{"first", "unchanged"} {
			w, summary := measure(b, f, filer)
			if n := int(summary.Files + summary.Directories); n != entries {
				b.Fatalf("%d entries in the snapshot of %d", n, entries)
			}
			if len(alone) < 2 {
				alone[snapshot] = w // of the first size
			}
			// The filer's stats are a few more than entries: paths are looked up.
			whole, times := float64(entries)/w.seconds, alone[snapshot].seconds/w.seconds
			share := float64(entries) / float64(w.stats)
			sustained := w.sustained / alone[snapshot].sustained
			rows = append(rows, []string{
				fmt.Sprint(walkers), snapshot, fmt.Sprintf("%.2f", w.seconds), fmt.Sprintf("%.0f", whole), fmt.Sprintf("%.2f", times),
				fmt.Sprintf("%.0f", w.sustained*share), fmt.Sprintf("%.2f", sustained),
			})
			b.Logf("%d walkers, %s: %.2f s, %.0f entries/s (%.2f), sustained %.0f (%.2f), %d stats", walkers, snapshot, w.seconds, whole, times, w.sustained*share, sustained, w.stats)
			if walkers == 8 && strings.HasPrefix(*fleetSizes, "1,") {
				// A first snapshot also moves and stores a listing of every directory: it is shown,
				// not asserted.
				if snapshot == "first" {
					continue
				}
				r.must(times >= minScaleOut, "8 walkers are %.2f times as fast as 1, %s snapshot (at least %d)", times, snapshot, minScaleOut)
				b.ReportMetric(times, snapshot+"-times-1-walker")
			}
		}
	}
	r.say("One shard of %d entries in %d directories, on a filer (slowfs) that takes %v for a stat and for a page of a directory. Each walker is a process that calls %d stats at a time. One committer runs, and no file is read.", entries, *treeDirectories, *statLatency, inFlight)
	r.table(rows)
	r.say("\"walk s\" is the time from the first stat to the last, as the filer sees them. \"sustained\" leaves out the first and the last tenth of the stats, because the work spreads over the walkers from one root, and they do not end together.")
	r.write()
}
