package e2e_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/e2e/slowfs"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// some is a tree of a few walk tasks.
var some = shape{directories: 150, files: 1, meanBytes: 3000}

// checkSnapshot fails the test unless the snapshot was committed with all of the
// tree, which it restores equal to.
func checkSnapshot(t *testing.T, f *fleet.Fleet, id, tree string) fleet.Snapshot {
	t.Helper()
	fleet.Await(t, "the snapshot to end", func() bool { return f.Index.WorkOf(id).State != "running" })
	made, problems := f.Show(id)
	all, directories := treetest.Count(t, tree)
	if made.State != "committed" || made.Files != all-directories || made.Directories != directories || made.Errors != 0 {
		t.Errorf("a tree of %d entries, %d of them directories: %+v, %v", all, directories, made, problems)
	}
	treetest.Equal(t, tree, f.Restore(id))
	return made
}

// checkNothingLeft fails the test unless all work is settled, and store and index agree.
func checkNothingLeft(t *testing.T, f *fleet.Fleet) (orphans int) {
	t.Helper()
	f.Index.CheckSettled()
	return fleet.CheckStore(t, f.StoreDir(), f.Index)
}

// A filer that stops answering in mid-run keeps no other from being backed up,
// and no service from stopping. When it answers again its snapshot completes.
func TestHungFilerDelaysNoOther(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{Worker: "stall_after: 500ms, stop_timeout: 1s, tasks: 2, batches: 2, in_hand: 4"})
	dead, well := filepath.Join(t.TempDir(), "dead"), filepath.Join(t.TempDir(), "well")
	generate(t, dead, 80, some)
	generate(t, well, 81, some)
	settle(t)
	filer := slowfs.Mount(t, dead, slowfs.Options{})
	t.Cleanup(filer.Resume)
	f.Filer("dead")
	f.Shard("dead", filer.Dir)
	f.Filer("well")
	f.Shard("well", well)

	first, hung := f.StartBackupOf("--filer", "dead", "--shard", filer.Dir)
	fleet.Await(t, "work to be settled", func() bool { return f.Index.WorkOf(hung).Settled() > 0 })
	filer.Hang("")
	at := f.Index.WorkOf(hung)
	for round := range 2 { // the second time with everything stalled that will be
		started := time.Now()
		backup, id := f.StartBackupOf("--filer", "well", "--shard", well)
		out := backup.Wait()
		expect(t, out, 0)
		checkSnapshot(t, f, id, well)
		t.Logf("round %d: the other filer's snapshot took %.1f s while this one hung at %+v", round, time.Since(started).Seconds(), at)
	}
	if w := f.Index.WorkOf(hung); w.State != "running" {
		t.Fatalf("the snapshot of the filer that hangs: %+v", w)
	}
	for _, old := range []*fleet.Service{f.Walkers[0], f.Readers[0]} {
		old.Retire() // it has work in hand that cannot be finished
	}
	filer.Resume()
	resumed := time.Now()
	out := first.Wait()
	expect(t, out, 0)
	t.Logf("%.1f s after it answered again its snapshot was committed", time.Since(resumed).Seconds())
	checkSnapshot(t, f, hung, dead)
	t.Logf("%d orphans", checkNothingLeft(t, f))
}

// inHand returns the leases that a filer's work has now.
func inHand(f *fleet.Fleet, table, filer string) int64 {
	return f.Index.Count("SELECT count(*) FROM "+table+" w JOIN filers f ON f.id = w.filer_id WHERE f.name = $1 AND w.lease_until > now()", filer)
}

// The limits of a filer hold over all services together, and a change of them holds at once.
func TestLimitsOfAFiler(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 82, some)
	settle(t)
	filer := slowfs.Mount(t, tree, slowfs.Options{Latency: slowfs.Latency{Stat: 3 * time.Millisecond, Open: 3 * time.Millisecond}})
	f.Filer("slow", "--walk-tasks", "3", "--read-batches", "2")
	f.Shard("slow", filer.Dir)
	backup, id := f.StartBackupOf("--filer", "slow", "--shard", filer.Dir)
	var most, mostBatches int64
	watch := func() {
		most = max(most, inHand(f, "walk_tasks", "slow"))
		mostBatches = max(mostBatches, inHand(f, "read_batches", "slow"))
	}
	fleet.Await(t, "some of the work to be settled", func() bool {
		watch()
		return backup.Ended() || f.Index.WorkOf(id).TasksSettled >= 6
	})
	// The governor may let it have fewer, where the machine is slow.
	if most == 0 || most > 3 || mostBatches > 2 {
		t.Errorf("%d walk tasks in hand at a time, want at most 3; %d read batches, want at most 2", most, mostBatches)
	}
	filer.SetLatency(slowfs.Latency{Stat: 50 * time.Millisecond}) // the walk shall last until it has noticed
	f.Must("filer", "set", "slow", "--walk-tasks", "1")
	fleet.Await(t, "what is in hand to be settled", func() bool {
		return f.Index.WorkOf(id).State != "running" || inHand(f, "walk_tasks", "slow") <= 1
	})
	if f.Index.WorkOf(id).TasksSettled == f.Index.WorkOf(id).TasksAnnounced {
		t.Fatal("the walk has ended before its limit was changed")
	}
	most = 0
	filer.SetLatency(slowfs.Latency{})
	fleet.Await(t, "the backup to end", func() bool {
		watch()
		return backup.Ended()
	})
	if most != 1 || mostBatches > 2 {
		t.Errorf("%d walk tasks in hand at a time, want 1; %d read batches, want at most 2", most, mostBatches)
	}
	expect(t, backup.Wait(), 0)
	checkSnapshot(t, f, id, tree)
	checkNothingLeft(t, f)
}

// Workers of a site get the work of its filers and no other. A site without
// workers waits, and keeps nobody else waiting.
func TestSites(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Worker: "queued: 8"})
	trees := map[string]string{}
	for i, site := range []string{"here", "there"} {
		trees[site] = filepath.Join(t.TempDir(), site)
		generate(t, trees[site], uint64(84+i), some)
		f.Filer("filer-"+site, "--site", site)
		f.Shard("filer-"+site, trees[site])
	}
	settle(t)
	for _, kind := range []string{"walker", "reader"} {
		f.Service(kind, "BCTL_WORKER_SITE=here")
	}
	there, waits := f.StartBackupOf("--filer", "filer-there", "--shard", trees["there"])
	here, id := f.StartBackupOf("--filer", "filer-here", "--shard", trees["here"])
	expect(t, here.Wait(), 0)
	checkSnapshot(t, f, id, trees["here"])
	if w := f.Index.WorkOf(waits); w.State != "running" || w.Settled() != 0 {
		t.Errorf("nobody could work at the other site, and it has %+v", w)
	}
	f.Service("walker", "BCTL_WORKER_SITE=there")
	fleet.Await(t, "the walk of the other site", func() bool {
		w := f.Index.WorkOf(waits)
		return w.TasksSettled == w.TasksAnnounced
	})
	if w := f.Index.WorkOf(waits); w.BatchesSettled != 0 {
		t.Errorf("there is no reader at the other site, and it has %+v", w)
	}
	f.Service("reader", "BCTL_WORKER_SITE=there")
	expect(t, there.Wait(), 0)
	checkSnapshot(t, f, waits, trees["there"])
	checkNothingLeft(t, f)
}

// A snapshot that is cancelled in mid-run leaves nothing in the index, and does
// not keep the next one waiting.
func TestCancel(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{})
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 86, some)
	settle(t)
	filer := slowfs.Mount(t, tree, slowfs.Options{Latency: slowfs.Latency{Stat: 3 * time.Millisecond, Open: 100 * time.Millisecond}})
	f.Filer("slow", "--walk-tasks", "2", "--read-batches", "1") // its files take a quarter of a minute
	f.Shard("slow", filer.Dir)
	backup, id := f.StartBackupOf("--filer", "slow", "--shard", filer.Dir)
	fleet.Await(t, "work to be settled", func() bool { return f.Index.WorkOf(id).BatchesSettled > 0 })
	at := f.Index.WorkOf(id)
	f.Must("cancel", id)
	out := backup.Wait()
	expect(t, out, 1, "cancel")
	made, _ := f.Show(id)
	if made.State != "failed" {
		t.Errorf("cancelled at %+v: %+v", at, made)
	}
	if n := f.Index.Count("SELECT count(*) FROM pages"); n != 0 {
		t.Errorf("%d pages are left of a snapshot that was cancelled", n)
	}
	filer.SetLatency(slowfs.Latency{})
	next, id := f.StartBackupOf("--filer", "slow", "--shard", filer.Dir)
	expect(t, next.Wait(), 0)
	checkSnapshot(t, f, id, tree)
	checkNothingLeft(t, f)
}

// One command backs up everything that is registered, and reports each shard. If it is interrupted,
// the services continue.
func TestBackupAll(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{})
	trees := map[string]string{}
	for i, name := range []string{"a", "b", "c", "d"} {
		trees[name] = filepath.Join(t.TempDir(), name)
		generate(t, trees[name], uint64(90+i), shape{directories: 30, files: 5, meanBytes: 3000})
	}
	settle(t)
	f.Filer("one", "--label", "env=prod")
	f.Filer("two", "--label", "env=test")
	f.Shard("one", trees["a"])
	f.Shard("one", trees["b"])
	f.Shard("two", trees["c"])
	f.Shard("two", trees["d"])

	out := f.Must("backup", "--all", "--json")
	committed := f.Snapshots("--state", "committed")
	if len(committed) != 4 || strings.Count(out.Stdout, `"summary"`) != 4 {
		t.Fatalf("%d snapshots, and %s", len(committed), out)
	}
	for _, s := range committed {
		checkSnapshot(t, f, s.ID, s.Shard)
	}
	f.Must("backup", "--label", "env=test")
	if n := len(f.Snapshots("--filer", "two", "--state", "committed")); n != 4 {
		t.Errorf("%d snapshots of two shards that were backed up twice", n)
	}

	f.Must("backup", "--all", "--detach")
	detached := f.Start("backup", "--filer", "one")
	fleet.Await(t, "the backup to be begun", func() bool { return detached.Ended() || len(f.Index.Snapshots()) >= 10 })
	interrupted := f.Start("backup", "--all")
	fleet.Await(t, "the backup to be begun", func() bool { return interrupted.Ended() || len(f.Index.Snapshots()) >= 11 })
	detached.Kill()
	interrupted.Kill()
	fleet.Await(t, "all snapshots to end", func() bool {
		return f.Index.Count("SELECT count(*) FROM snapshots WHERE state = 'running'") == 0
	})
	for _, s := range f.Snapshots() {
		if s.State != "committed" {
			t.Errorf("%+v", s)
		}
	}
	checkNothingLeft(t, f)
}

// The newest source snapshot is backed up, although its name changes.
func TestSourceSnapshots(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{Worker: "skew: 1ms"}) // the clock is this machine's
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 95, some)
	settle(t)
	filer := slowfs.Mount(t, tree, slowfs.Options{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(filer.AddSnapshot("hourly.0", tree))
	f.Filer("slow")
	f.Shard("slow", "/home", "--source", filer.Dir, "--snapshots", ".snapshot/hourly.*")
	args := []string{"--filer", "slow", "--shard", "/home"}

	first, id := f.StartBackupOf(args...)
	expect(t, first.Wait(), 0)
	made := checkSnapshot(t, f, id, tree)
	if !strings.Contains(made.Source, "hourly.0") || made.Shard != "/home" {
		t.Errorf("the first: %+v", made)
	}

	// The tree has not changed, although its path has.
	must(filer.RenameSnapshot("hourly.0", "hourly.1"))
	must(filer.AddSnapshot("hourly.0", tree))
	before := filer.Counters()
	second, id := f.StartBackupOf(args...)
	expect(t, second.Wait(), 0)
	made = checkSnapshot(t, f, id, tree)
	if opens := filer.Counters().Opens - before.Opens; opens != 0 || made.ReadBytes != 0 || made.FilesUnchanged != made.Files {
		t.Errorf("%d files were opened after the rotation: %+v", opens, made)
	}

	// It expires while it is backed up.
	filer.SetLatency(slowfs.Latency{Stat: 3 * time.Millisecond})
	third, id := f.StartBackupOf(args...)
	fleet.Await(t, "work to be settled", func() bool { return f.Index.WorkOf(id).Settled() > 0 })
	must(filer.RemoveSnapshot("hourly.0"))
	out := third.Wait()
	expect(t, out, 1, "hourly.0")
	if made, _ = f.Show(id); made.State != "failed" {
		t.Errorf("after its source was gone: %+v", made)
	}
	filer.SetLatency(slowfs.Latency{})
	must(filer.AddSnapshot("hourly.0", tree))
	fourth, id := f.StartBackupOf(args...)
	expect(t, fourth.Wait(), 0)
	checkSnapshot(t, f, id, tree)
	t.Run("copies", func(t *testing.T) { snapshotsThatAreCopies(t, f) })
	checkNothingLeft(t, f)
}

// A filer whose snapshots are copies, with other inodes and ctimes: what is
// compared is what the filer's setting says.
func snapshotsThatAreCopies(t *testing.T, f *fleet.Fleet) {
	tree := filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 96, shape{directories: 40, files: 2, meanBytes: 3000})
	backups := t.TempDir()
	copyTo(t, tree, filepath.Join(backups, "daily.2026-01-01"))
	settle(t)
	f.Filer("copies", "--compare", "mtime")
	f.Shard("copies", "/data", "--source", backups, "--snapshots", "daily.*")
	first, id := f.StartBackupOf("--filer", "copies", "--shard", "/data")
	expect(t, first.Wait(), 0)
	checkSnapshot(t, f, id, tree)

	copyTo(t, tree, filepath.Join(backups, "daily.2026-01-02"))
	settle(t)
	second, id := f.StartBackupOf("--filer", "copies", "--shard", "/data")
	expect(t, second.Wait(), 0)
	made := checkSnapshot(t, f, id, tree)
	if made.ReadBytes != 0 || !strings.Contains(made.Source, "2026-01-02") {
		t.Errorf("of a copy: %+v", made)
	}
}
