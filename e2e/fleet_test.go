package e2e_test

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// check fails the test unless the backup has committed its snapshot, which
// restores equal to the tree, and nothing is left over. It returns the orphans.
func check(t *testing.T, f *fleet.Fleet, out fleet.Output, tree string) (orphans int) {
	t.Helper()
	if out.Status != 0 {
		t.Fatalf("%s", out)
	}
	made := out.Summary(t)
	all, directories := treetest.Count(t, tree)
	if made.State != "committed" || made.Files != all-directories || made.Directories != directories || made.StatCalls != all || made.Errors != 0 {
		t.Errorf("a tree of %d entries, %d of them directories: %+v", all, directories, made)
	}
	treetest.Equal(t, tree, f.Restore(made.Snapshot))
	f.Index.CheckSettled()
	return fleet.CheckStore(t, f.StoreDir(), f.Index)
}

// spread is a tree that makes many tasks and batches: the first slice of a
// fleet's snapshot is of 64 directories.
var spread = shape{directories: 200, files: 5, meanBytes: 6000}

func TestFleet(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{}), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 10, spread)
	treetest.Make(t, filepath.Join(tree, "every"), everyKind())
	settle(t)
	backup, _ := f.StartBackup(tree)
	if orphans := check(t, f, backup.Wait(), tree); orphans != 0 {
		t.Errorf("%d orphans, though nothing went wrong", orphans)
	}
	if work := f.Index.Work(); work.TasksSettled < 10 || work.BatchesSettled < 10 {
		t.Errorf("the tree was not spread: %+v", work)
	}
	pages := f.Index.Count("SELECT count(*) FROM pages")
	second := f.Backup(fleet.BackupArgs(tree)...)
	all, _ := treetest.Count(t, tree)
	if second.StatCalls != all || second.ReadBytes != 0 || second.StoredBytes != 0 || f.Index.Count("SELECT count(*) FROM pages") != pages {
		t.Errorf("a backup of what has not changed: %+v", second)
	}
	m := &mutator{t: t, dir: tree, random: rand.New(rand.NewPCG(10, 1))}
	m.mutate(100)
	third, _ := f.StartBackup(tree, "--allow-shrink")
	check(t, f, third.Wait(), tree)
}

// Any process may be killed at any moment: the snapshot completes by itself
// once it is back.
func TestKillAnyProcess(t *testing.T) {
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{OwnPostgres: true, S3: true}), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 11, spread)
	settle(t)
	whole, _ := f.StartBackup(tree)
	check(t, f, whole.Wait(), tree)
	total := f.Index.Work().Settled()

	m := &mutator{t: t, dir: tree, random: rand.New(rand.NewPCG(11, rand.Uint64()))}
	victims := []struct {
		name string
		kill func()
		back func()
	}{
		{"walker", f.Walkers[0].Kill, f.Walkers[0].Restart},
		{"all walkers", func() { f.Walkers[0].Kill(); f.Walkers[1].Kill() }, func() { f.Walkers[0].Restart(); f.Walkers[1].Restart() }},
		{"reader", f.Readers[0].Kill, f.Readers[0].Restart},
		{"all readers", func() { f.Readers[0].Kill(); f.Readers[1].Kill() }, func() { f.Readers[0].Restart(); f.Readers[1].Restart() }},
		{"committer", f.Committers[0].Kill, f.Committers[0].Restart},
		{"all committers", func() { f.Committers[0].Kill(); f.Committers[1].Kill() }, func() { f.Committers[0].Restart(); f.Committers[1].Restart() }},
		{"nats-server", f.NATS.Kill, f.NATS.Restart},
		{"postgres", f.Postgres.Kill, f.Postgres.Restart},
		{"versitygw", f.S3.Kill, f.S3.Restart},
	}
	for _, victim := range victims {
		// A tree of another name is another shard, whose first backup has everything to do.
		shard := filepath.Join(t.TempDir(), strings.ReplaceAll(victim.name, " ", "-"))
		generate(t, shard, m.random.Uint64(), spread)
		settle(t)
		started := time.Now()
		backup, _ := f.StartBackup(shard)
		settled := m.random.Int64N(total / 2)
		fleet.Await(t, "work to be settled", func() bool { return backup.Ended() || f.Index.Work().Settled() >= settled })
		victim.kill()
		<-time.After(time.Duration(m.random.IntN(300)) * time.Millisecond) // the rest works on meanwhile
		victim.back()
		back := time.Now()
		orphans := check(t, f, backup.Wait(), shard)
		t.Logf("%s, killed when %d of about %d were settled: %d orphans; %.1f s in all, %.1f s after it was back", victim.name, settled, total, orphans,
			time.Since(started).Seconds(), time.Since(back).Seconds())
	}
}
