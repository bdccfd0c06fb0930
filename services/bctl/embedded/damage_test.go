package embedded_test

import (
	"bytes"
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
	"regexp"
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

func truncated(data []byte) []byte { return data[:len(data)-len(data)/3] }
func beheaded(data []byte) []byte  { return data[len(data)/3:] }

// A damageCase is one cell of the matrix.
type damageCase struct {
	object, damage string
	do             func(w *damageWorld)
}

// objectCases returns the cases of one kind of object, of which objects are at least two, oldest
// first.
func objectCases(object, prefix string, pick func(w *damageWorld) (this, other string)) []damageCase {
	on := func(do func(w *damageWorld, this, other string)) func(*damageWorld) {
		return func(w *damageWorld) {
			this, other := pick(w)
			do(w, this, other)
		}
	}
	return []damageCase{
		{object, "deleted", on(func(w *damageWorld, this, _ string) { w.must(os.Remove(w.path(this))) })},
		{object, "truncated at the tail", on(func(w *damageWorld, this, _ string) { w.change(this, truncated) })},
		{object, "truncated at the head", on(func(w *damageWorld, this, _ string) { w.change(this, beheaded) })},
		{object, "longer", on(func(w *damageWorld, this, _ string) {
			w.change(this, func(data []byte) []byte { return append(data, "xx"...) })
		})},
		{object, "one bit flipped", on(func(w *damageWorld, this, _ string) { w.flip(this, func(n int) int { return n / 2 }) })},
		{object, "swapped with another", on(func(w *damageWorld, this, other string) {
			one, err := os.ReadFile(w.path(this))
			w.must(err)
			w.change(other, func(two []byte) []byte {
				w.change(this, func([]byte) []byte { return bytes.Clone(two) })
				return one
			})
		})},
		{object, "duplicated", on(func(w *damageWorld, this, _ string) {
			data, err := os.ReadFile(w.path(this))
			w.must(err)
			duplicate := w.path(this[:len(this)-1] + string("01"[b2i(strings.HasSuffix(this, "0"))]))
			w.must(os.WriteFile(duplicate, data, 0o600))
		})},
		{object, "replaced by an older one", on(func(w *damageWorld, this, other string) {
			older, err := os.ReadFile(w.path(other))
			w.must(err)
			w.change(this, func([]byte) []byte { return older })
		})},
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// damageCases are all cells.
func damageCases() (cases []damageCase) {
	packOf := func(n int) func(w *damageWorld) string {
		return func(w *damageWorld) string {
			name, _ := w.frameOf(w.entry([]string{"a/1", "b/1", "c/1"}[n]).Content.Refs[0].Chunk)
			return name
		}
	}
	cases = append(cases, objectCases("pack", store.PacksPrefix, func(w *damageWorld) (string, string) { return packOf(1)(w), packOf(0)(w) })...)
	for part, at := range map[string]func(w *damageWorld) (string, func(int) int){
		"header":  func(w *damageWorld) (string, func(int) int) { return packOf(0)(w), func(int) int { return 20 } },
		"table":   func(w *damageWorld) (string, func(int) int) { return packOf(0)(w), func(n int) int { return n - 100 } },
		"trailer": func(w *damageWorld) (string, func(int) int) { return packOf(0)(w), func(n int) int { return n - 20 } },
		"frame of small files": func(w *damageWorld) (string, func(int) int) {
			return frameAt(w, w.entry("a/1").Content.Refs[0].Chunk)
		},
		"list chunk of a large file": func(w *damageWorld) (string, func(int) int) {
			return frameAt(w, w.entry("large").Content.Refs[0].Chunk)
		},
		"chunk of extended attributes": func(w *damageWorld) (string, func(int) int) {
			return frameAt(w, w.entry("x/7").XattrChunk.Chunk)
		},
	} {
		cases = append(cases, damageCase{"pack: " + part, "one bit flipped", func(w *damageWorld) {
			name, offset := at(w)
			w.flip(name, offset)
		}})
	}
	last := func(prefix string) func(w *damageWorld) (string, string) {
		return func(w *damageWorld) (string, string) {
			names := []string{}
			for i := range w.snapshots {
				names = append(names, w.names(prefix+w.snapshots[i].ID.String())...)
			}
			return names[1], names[0]
		}
	}
	cases = append(cases, objectCases("segment", store.SegmentsPrefix, last(store.SegmentsPrefix))...)
	cases = append(cases, objectCases("commit record", store.CommitsPrefix, last(store.CommitsPrefix))...)
	newest := func(prefix string) func(w *damageWorld) (string, string) {
		return func(w *damageWorld) (string, string) {
			names := w.names(prefix)
			return names[len(names)-1], names[max(0, len(names)-2)]
		}
	}
	cases = append(cases, objectCases("catalog", store.CatalogPrefix, newest(store.CatalogPrefix))...)
	cases = append(cases, objectCases("index copy", store.IndexPrefix, newest(store.IndexPrefix))...)
	for _, c := range []struct{ table, damage, statement string }{
		{"pages", "deleted", "DELETE FROM pages WHERE path_key = x'6100'"},
		{"pages", "one bit flipped", "UPDATE pages SET listing = CAST(substr(listing, 1, 30) || x'55' || substr(listing, 32) AS BLOB) WHERE path_key = x'6100'"},
		{"pages", "swapped with another", "UPDATE pages SET listing = (SELECT o.listing FROM pages o WHERE o.path_key = CASE pages.path_key WHEN x'6100' THEN x'6200' ELSE x'6100' END) WHERE path_key IN (x'6100', x'6200')"},
		{"pages", "replaced by an older one", "UPDATE pages SET listing = (SELECT o.listing FROM pages o WHERE o.path_key = x'' ORDER BY first_snapshot LIMIT 1) WHERE path_key = x'' AND last_snapshot IS NULL"},
		{"chunks", "deleted", "DELETE FROM chunks WHERE id = {a/1}"},
		{"chunks", "one bit flipped", "UPDATE chunks SET frame_offset = frame_offset + 4 WHERE id = {a/1}"},
		{"chunks", "swapped with another", "UPDATE chunks SET (frame, frame_offset, length) = (SELECT o.frame, o.frame_offset, o.length FROM chunks o WHERE o.id = {a/2}) WHERE id = {a/1}"},
		{"chunk_lists", "deleted", "DELETE FROM chunk_lists"},
		{"chunk_lists", "one bit flipped", "UPDATE chunk_lists SET chunks = CAST(x'00' || substr(chunks, 2) AS BLOB)"},
		{"packs", "deleted", "DELETE FROM packs WHERE id = (SELECT min(id) FROM packs)"},
		{"packs", "one bit flipped", "UPDATE packs SET object_offset = object_offset + 4 WHERE id = (SELECT min(id) FROM packs)"},
		{"packs", "swapped with another", "UPDATE packs SET stored_bytes = (SELECT o.stored_bytes FROM packs o WHERE o.id <> packs.id ORDER BY o.id LIMIT 1)"},
		{"snapshots", "one bit flipped", "UPDATE snapshots SET files = files + 4 WHERE number = 2"},
		{"snapshots", "swapped with another", "UPDATE snapshots SET pages_sum = (SELECT o.pages_sum FROM snapshots o WHERE o.number <> snapshots.number ORDER BY number LIMIT 1) WHERE number = 2"},
	} {
		cases = append(cases, damageCase{"index: table " + c.table, c.damage, func(w *damageWorld) {
			w.sql(regexp.MustCompile(`\{(.*?)\}`).ReplaceAllStringFunc(c.statement, func(path string) string {
				return fmt.Sprintf("x'%x'", w.entry(strings.Trim(path, "{}")).Content.Refs[0].Chunk[:])
			}))
		}})
	}
	slices.SortStableFunc(cases, func(a, b damageCase) int {
		order := func(object string) int {
			return slices.IndexFunc([]string{"pack", "segment", "commit", "catalog", "index copy", "index:"}, func(p string) bool { return strings.HasPrefix(object, p) })
		}
		return cmp.Or(cmp.Compare(order(a.object), order(b.object)), cmp.Compare(strings.Count(a.object, ":"), strings.Count(b.object, ":")),
			b2i(a.object != b.object && strings.HasPrefix(a.object, "pack:"))*cmp.Compare(a.object, b.object))
	})
	return slices.Clip(cases)
}

func frameAt(w *damageWorld, id backup.ChunkID) (string, func(int) int) {
	name, offset := w.frameOf(id)
	return name, func(int) int { return int(offset) }
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
