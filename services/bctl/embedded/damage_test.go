package embedded_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/repair"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/embedded"
)

var update = flag.Bool("update", false, "write docs/damage.md")

// A damageWorld is a repository with three snapshots, of which each case gets a copy.
//
//	snapshot 1   a/0 to a/9, large (of several chunks), x/0 to x/119 (with extended attributes),
//	             old, which the later ones do not have
//	snapshot 2   b/0 to b/9 in addition
//	snapshot 3   c/0 to c/9 in addition
type damageWorld struct {
	*purgeWorld
	want []string // the tree of each snapshot
}

func newDamageWorld(t *testing.T) *damageWorld {
	t.Helper()
	w := &damageWorld{purgeWorld: &purgeWorld{machine: newMachine(t)}}
	calm := faultsource.New(posix.New(posix.Options{}))
	calm.SetClock(func() (time.Time, time.Duration) { return time.Now().Add(time.Hour), 0 }) // nothing is racy
	w.Source = calm
	random := rand.NewChaCha8([32]byte{7})
	noise := func(n int) string {
		b := make([]byte, n)
		_, _ = random.Read(b)
		return string(b)
	}
	first := treetest.Tree{"old": treetest.File("only in the first snapshot"), "large": treetest.File(noise(9 << 20))}
	for i := range 120 {
		first[fmt.Sprint("x/", i)] = treetest.File(fmt.Sprint("attributed ", i)).WithXattr("user.k", noise(3600))
	}
	for n, name := range []string{"a", "b", "c"} {
		tree := treetest.Tree{}
		if n == 0 {
			tree = first
		}
		for i := range 10 {
			tree[fmt.Sprint(name, "/", i)] = treetest.File(fmt.Sprint(name, i) + noise(2000))
		}
		treetest.Make(t, w.tree, tree)
		if n == 1 {
			w.must(os.Remove(filepath.Join(w.tree, "old")))
		}
		s, err := w.backup(t.Context())
		w.must(err)
		if s.State != backup.Committed || s.Counts.Errors > 0 {
			t.Fatalf("snapshot %d: %s %s, %d errors", n, s.State, s.Reason, s.Counts.Errors)
		}
		w.snapshots = append(w.snapshots, s)
		want := filepath.Join(t.TempDir(), "want")
		w.must(exec.CommandContext(t.Context(), "cp", "-a", w.tree, want).Run())
		w.want = append(w.want, want)
		w.must(embedded.CopyIndex(t.Context(), w.index, w.Store, w.Keys, time.Now(), time.Now()))
	}
	return w
}

func (w *damageWorld) copied(t *testing.T) *damageWorld {
	t.Helper()
	return &damageWorld{purgeWorld: w.purgeWorld.copied(t), want: w.want}
}

// names returns the objects with a prefix, by name.
func (w *damageWorld) names(prefix string) (names []string) {
	w.Helper()
	for o, err := range w.Store.List(w.Context(), prefix) {
		w.must(err)
		names = append(names, o.Name)
	}
	slices.Sort(names)
	return names
}

func (w *damageWorld) path(name string) string { return filepath.Join(w.memory, "store", name) }

// change replaces the bytes of an object.
func (w *damageWorld) change(name string, do func(data []byte) []byte) {
	w.Helper()
	data, err := os.ReadFile(w.path(name))
	w.must(err)
	w.must(os.Chmod(w.path(name), 0o600))
	w.must(os.WriteFile(w.path(name), do(data), 0o600))
}

func (w *damageWorld) flip(name string, at func(size int) int) {
	w.Helper()
	w.change(name, func(data []byte) []byte { data[at(len(data))] ^= 4; return data })
}

// sql changes the index, with a connection of its own.
func (w *damageWorld) sql(statement string) {
	w.Helper()
	db, err := sql.Open("sqlite", filepath.Join(w.memory, "index.db"))
	w.must(err)
	defer db.Close()
	result, err := db.ExecContext(w.Context(), statement)
	w.must(err)
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		w.Fatalf("%s changes nothing: %v", statement, err)
	}
}

// packOf returns the name of the first snapshot's pack, and the offset in it of the frame with a
// chunk.
func (w *damageWorld) frameOf(id backup.ChunkID) (name string, offset int64) {
	w.Helper()
	found, err := w.index.LocateReadable(w.Context(), []backup.ChunkID{id})
	w.must(err)
	at := found[0]
	name = store.PackName(at.Snapshot, at.Object)
	p, err := pack.Open(w.Context(), w.Store, pack.Place{Object: name, Offset: at.Offset, Bytes: at.Bytes}, w.Repository.ID, at.Pack, w.opener)
	w.must(err)
	f := p.Frames()[at.Frame]
	return name, f.Offset + f.SealedLength/2
}

// entry returns the entry of the newest snapshot at a path.
func (w *damageWorld) entry(path string) backup.Entry {
	w.Helper()
	dir, name := backup.Split(path)
	for v, err := range w.index.Pages(w.Context(), w.snapshots[2].ID, dir) {
		w.must(err)
		page, err := listing.DecodePage(v)
		w.must(err)
		for _, e := range page.Entries {
			if v.Path == dir && e.Name == name {
				return e
			}
		}
	}
	w.Fatalf("there is no %s", path)
	return backup.Entry{}
}

// An outcome is a row of the table.
type outcome struct {
	level, found  string // the first level that finds it
	lost          string
	backup        string // what the next backup does, without a repair
	repaired      string
	lostAfter     string // after a repair and a backup
	affectedPaths map[backup.SnapshotNumber]map[string]bool
}

// find checks a world at each level, until one finds damage.
func (w *damageWorld) find() (report check.Report, o outcome) {
	w.Helper()
	o.level, o.found = "", "nothing"
	for level := check.Index; level <= check.Content; level++ {
		var affected []check.Affected
		options := w.checkOptions(level)
		options.Affected = func(_ *check.Finding, a check.Affected) { affected = append(affected, a) }
		r, err := check.Run(w.Context(), options)
		if err != nil {
			o.level, o.found = level.String(), "fails: "+strings.SplitN(err.Error(), ": ", 2)[0]
			return r, o
		}
		if len(r.Findings) == 0 {
			continue
		}
		kinds := map[string]bool{}
		for _, f := range r.Findings {
			kinds[string(f.Kind)] = true
		}
		if o.level == "" {
			o.level, o.found = level.String(), strings.Join(slices.Sorted(maps.Keys(kinds)), ", ")
		}
		o.affectedPaths = map[backup.SnapshotNumber]map[string]bool{}
		for _, a := range affected {
			for n := a.First; n <= a.Last; n++ {
				if o.affectedPaths[n] == nil {
					o.affectedPaths[n] = map[string]bool{}
				}
				o.affectedPaths[n][a.Path] = true
			}
		}
		report = r
		if level < check.Objects {
			continue // the index and the objects may both be damaged by it
		}
		return r, o
	}
	return report, o
}

// restored returns the paths of each snapshot that are not restored as they were. All of them must
// be reported.
func (w *damageWorld) restored() map[backup.SnapshotNumber]map[string]bool {
	w.Helper()
	wrong := map[backup.SnapshotNumber]map[string]bool{}
	for i := range w.snapshots {
		s, err := w.index.Snapshot(w.Context(), w.snapshots[i].ID)
		w.must(err)
		to, err := os.MkdirTemp(w.memory, "restored-")
		w.must(err)
		problems, err := w.restore(w.Context(), &s, to)
		w.must(err)
		reported := map[string]bool{}
		for _, p := range problems {
			reported[p.Path] = true
		}
		paths := map[string]bool{}
		for _, difference := range treetest.Compare(w.want[i], to) {
			path, _, _ := strings.Cut(difference, ":")
			if info, err := os.Stat(filepath.Join(w.want[i], path)); err != nil || !info.IsDir() {
				paths[path] = true
				continue
			}
			if _, err := os.Stat(filepath.Join(to, path)); err == nil {
				continue // it has other times, because a file in it is missing
			}
			w.must(filepath.WalkDir(filepath.Join(w.want[i], path), func(file string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					paths[strings.TrimPrefix(file, w.want[i]+"/")] = true
				}
				return err
			}))
		}
		for path := range paths {
			if !covered(reported, path) {
				w.Errorf("snapshot %d: %s is not restored as it was, and nothing reports it", i+1, path)
			}
		}
		if len(paths) > 0 {
			wrong[s.Number] = paths
		}
		w.must(os.RemoveAll(to))
	}
	return wrong
}

// covered reports whether a path, or a directory above it, was reported.
func covered(reported map[string]bool, path string) bool {
	for ; ; path, _ = backup.Split(path) {
		if reported[path] || reported["."] || reported[""] {
			return true
		}
		if path == "" {
			return false
		}
	}
}

// count describes the files that are lost.
func countLost(lost map[backup.SnapshotNumber]map[string]bool) string {
	all := map[string]bool{}
	for _, paths := range lost {
		maps.Copy(all, paths)
	}
	switch len(all) {
	case 0:
		return "none"
	case 1:
		return "1: " + slices.Collect(maps.Keys(all))[0]
	}
	return fmt.Sprint(len(all))
}

// nextBackup takes a backup, and describes it.
func (w *damageWorld) nextBackup() string {
	w.Helper()
	before := len(w.snapshots)
	s, err := w.backup(w.Context())
	switch {
	case err != nil:
		return "fails"
	case s.State != backup.Committed:
		return "fails"
	}
	w.snapshots, w.want = append(w.snapshots[:before:before], s), append(w.want[:before:before], w.want[before-1])
	return "succeeds"
}

// run makes one row.
func (c *damageCase) run(t *testing.T, world *damageWorld) (o outcome) {
	w := world.copied(t)
	c.do(w)
	report, o := w.find()
	lost := w.restored()
	o.lost = countLost(lost)
	// What is lost and what check says agree, where the index is whole.
	if !strings.HasPrefix(c.object, "index:") {
		for i := range w.snapshots {
			n := w.snapshots[i].Number
			if !maps.Equal(lost[n], o.affectedPaths[n]) && len(lost[n])+len(o.affectedPaths[n]) > 0 {
				t.Errorf("snapshot %d: lost are %q, and affected %q", n, slices.Sorted(maps.Keys(lost[n])), slices.Sorted(maps.Keys(o.affectedPaths[n])))
			}
		}
	}
	plain := world.copied(t)
	c.do(plain)
	o.backup = plain.nextBackup()

	if len(report.Findings) > 0 {
		o.repaired = w.repaired(&report)
	}
	if got := w.nextBackup(); got != "succeeds" {
		o.lostAfter = "the backup " + got
		return o
	}
	after := w.restored()
	if len(after[w.snapshots[len(w.snapshots)-1].Number]) > 0 && !strings.HasPrefix(c.object, "index:") {
		t.Errorf("the backup after the repair has not healed %q", slices.Sorted(maps.Keys(after[w.snapshots[len(w.snapshots)-1].Number])))
	}
	o.lostAfter = countLost(after)
	return o
}

// repaired repairs, and describes what remains to be repaired.
func (w *damageWorld) repaired(report *check.Report) string {
	w.Helper()
	o := repair.Options{Store: w.Store, Check: w.checkOptions(check.Content), By: "tester", Prune: prune.Options{Holder: backup.NewPackID().String(), Log: slog.New(slog.DiscardHandler)}}
	s, err := embedded.Repair(w.Context(), w.index, w.Keys, w.LockDir, o, report)
	switch {
	case err != nil:
		return "fails: " + strings.SplitN(err.Error(), ": ", 2)[0]
	case s.Left > 0:
		return "nothing: rebuild the index"
	case s.Cut > 0 && s.Packs+s.Partial == 0:
		return "cuts it off"
	case s.FromParity > 0 && s.Packs+s.Partial == 0:
		return "puts it back from parity"
	case s.Packs > 0:
		return "drops the pack"
	case s.Partial > 0:
		return "drops a part of the pack"
	case s.Journal > 0:
		return "writes it again"
	}
	return "has the files read again"
}

// damageHead is the beginning of docs/damage.md.
const damageHead = `# What damage does

This table is written by TestDamage of services/bctl/embedded. It damages each kind of object in each way, in a repository on
one machine with three snapshots: they share files, a file of several chunks and extended attributes that have chunks of
their own, and one file is only in the first of them. For each case, the test compares all restored trees with what was backed
up: a file that is not restored as it was is reported by the restore, and no file is affected that [check](check.md) does not
name.

- **check** is the first level that finds the damage, and the kinds of its findings.
- **lost** is the number of files that cannot be restored, or not in full, from one of the snapshots.
- **next backup** is what a backup does that follows without a repair.
- **repair** is what ` + "`bctl repair`" + ` does, and **lost in the end** what is lost after the repair and a backup of the
  same tree. A file that only an old snapshot has cannot come back.

The object ` + "`repository`" + ` is not in the table: without it, every command fails and names it. [Keep a copy of it](operations.md#what-to-keep-elsewhere)
with the identity. [disaster-recovery.md](disaster-recovery.md) describes larger losses.

| object | damage | check | lost | next backup | repair | lost in the end |
| --- | --- | --- | --- | --- | --- | --- |
`

// Every kind of object is damaged in every way. A row of docs/damage.md has what a check says,
// which files are lost, that the next backup succeeds, and what a repair brings back. Write it with
// go test ./services/bctl/embedded -run TestDamage -update.
func TestDamage(t *testing.T) {
	world := newDamageWorld(t)
	world.must(world.index.SetBrake(t.Context(), index.Brake{Snapshots: 100, MinSnapshots: 1 << 30, Bytes: 100, MinBytes: 1 << 60, Operators: 1}, "tester"))
	var b strings.Builder
	b.WriteString(damageHead)
	for _, c := range damageCases() {
		t.Run(strings.ReplaceAll(c.object+" "+c.damage, " ", "_"), func(t *testing.T) {
			o := c.run(t, world)
			if strings.HasPrefix(c.object, "pack: frame") || strings.HasPrefix(c.object, "pack: chunk") || strings.HasPrefix(c.object, "pack: list") {
				// Which chunks share a frame depends on the order in which files are read.
				o.lost = "those in the frame"
				o.lostAfter = strings.NewReplacer("1: old", "at most old", "none", "at most old").Replace(o.lostAfter)
			}
			found := "nothing"
			if o.level != "" {
				found = o.level + ": " + o.found
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", c.object, c.damage, found, o.lost, o.backup, cmp.Or(o.repaired, "nothing to do"), o.lostAfter)
		})
	}
	writeParityDamage(t, &b)
	path := filepath.Join("..", "..", "..", "docs", "damage.md")
	if *update {
		world.must(os.WriteFile(path, []byte(b.String()), 0o600))
		return
	}
	written, err := os.ReadFile(path)
	world.must(err)
	if string(written) != b.String() {
		t.Errorf("docs/damage.md differs from what was found, which is\n%s", b.String())
	}
}

// A repair that ends early, at the moment at which its packs are condemned, is repeated. A prune in
// between takes back the condemnation, and deletes nothing.
func TestInterruptedRepair(t *testing.T) {
	w := newDamageWorld(t)
	w.must(w.index.SetBrake(t.Context(), index.Brake{Snapshots: 100, MinSnapshots: 1 << 30, Bytes: 100, MinBytes: 1 << 60, Operators: 1}, "tester"))
	name, _ := w.frameOf(w.entry("a/1").Content.Refs[0].Chunk)
	w.must(os.Remove(w.path(name)))
	for _, prunes := range []bool{false, true} {
		report, _ := w.find()
		d := report.Findings[0].Damage
		interrupted := errors.New("interrupted")
		_, err := prune.Lose(t.Context(), w.index, prune.Options{Store: w.Store, Holder: "killed", By: index.ByRepair("tester"), Log: slog.New(slog.DiscardHandler)},
			[]prune.LostPack{{Row: d.Row, Pack: d.Pack}}, func(context.Context) error { return interrupted })
		if !errors.Is(err, interrupted) {
			t.Fatalf("error %v", err)
		}
		if prunes {
			_, err := w.prune(1)
			w.must(err)
		}
	}
	report, _ := w.find()
	if got := w.repaired(&report); got != "drops the pack" {
		t.Fatal(got)
	}
	if got := w.nextBackup(); got != "succeeds" {
		t.Fatal(got)
	}
	if lost := countLost(w.restored()); lost != "1: old" {
		t.Errorf("lost: %s", lost)
	}
	if again, _ := w.find(); len(again.Findings) != 1 || again.Findings[0].Kind != check.Chunks || again.Findings[0].Files != 1 {
		t.Errorf("%+v", again.Findings)
	}
	// What was noted for the next backup is done: another one reads nothing.
	s, err := w.backup(t.Context())
	w.must(err)
	if s.Counts.ReadBytes > 0 {
		t.Errorf("another backup reads %d bytes", s.Counts.ReadBytes)
	}
}
