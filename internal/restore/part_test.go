package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

// pagesIn is Part.Pages.
func (f *fixture) pagesIn(ctx context.Context, from, to []byte) iter.Seq2[backup.PageVersion, error] {
	return func(yield func(backup.PageVersion, error) bool) {
		for v, err := range f.Pages(ctx, f.snapshot, "") {
			key := backup.PathKey(v.Path)
			if bytes.Compare(key, from) < 0 || to != nil && bytes.Compare(key, to) >= 0 {
				continue
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

// inParts restores in parts that begin at cuts, in the given order, and then the last part.
func (f *fixture) inParts(o Options, cuts []string, order func([]Part)) []*observer {
	f.t.Helper()
	mark := target.JointMark(f.snapshot)
	before, err := Begin(o, mark)
	check(f.t, err)
	var keys [][]byte
	for _, cut := range cuts {
		keys = append(keys, backup.PathKey(cut))
	}
	var parts []Part
	from := []byte{}
	for _, key := range keys {
		parts = append(parts, Part{From: from, To: key})
		from = key
	}
	parts = append(parts, Part{From: from})
	order(parts)
	parts = append(parts, Part{Last: true, Cuts: keys, Before: &before})
	var all []*observer
	for n := range parts {
		o.Part = &parts[n]
		o.Part.Pages, o.Part.Target = f.pagesIn, target.Joined{Mark: mark, Attempt: 1}
		_, obs := f.restore(o)
		all = append(all, obs)
	}
	return all
}

// partsTree is a tree with links between directories, and directories of many modes.
func (f *fixture) partsTree() {
	linked := f.file("first", "one file")
	linked.Nlink, linked.Inode = 3, 99
	second, third := linked, linked
	second.Name, third.Name = "second", "third"
	f.directory("", subdirectory("a"), subdirectory("b"), subdirectory("c"), f.file("top", "top"))
	f.directory("a", subdirectory("x"), subdirectory("y"), f.file("in a", "in a"), linked)
	f.directory("a/x", subdirectory("deep"), f.file("in x", "in x"), second)
	f.directory("a/x/deep", f.file("in deep", "in deep"), symlink("link", "../.."), entry("fifo", backup.FIFO))
	f.directory("a/y", f.file("in y", "in y"))
	f.directory("b", subdirectory("z"))
	f.directory("b/z", f.file("in z", "in z"), third)
	f.directory("c")
}

// However the tree is cut, and in whichever order the parts are restored, the target is that of a
// restore without parts.
func TestPartsEqualTheWhole(t *testing.T) {
	f := newFixture(t)
	f.partsTree()
	f.newPack()
	whole := filepath.Join(t.TempDir(), "whole")
	_, obs := f.restore(Options{Target: whole, Pages: f.pageSet()})
	obs.wantProblems(t)
	want := treeOf(t, whole)
	for _, cuts := range [][]string{nil, {"b"}, {"a/x"}, {"a/x", "a/x/deep", "b/z"}, {"a", "a/x", "a/x/deep", "a/y", "b", "b/z", "c"}} {
		for name, order := range map[string]func([]Part){"forward": func([]Part) {}, "backward": slices.Reverse[[]Part]} {
			t.Run(fmt.Sprint(cuts, name), func(t *testing.T) {
				parted := filepath.Join(t.TempDir(), "parted")
				for _, obs := range f.inParts(Options{Target: parted, Pages: f.pageSet()}, cuts, order) {
					obs.wantProblems(t)
				}
				if got := treeOf(t, parted); got != want {
					t.Errorf("in parts:\n%s\nas a whole:\n%s", got, want)
				}
			})
		}
	}
}

// treeOf describes a tree: names, attributes, content, and which names are one file.
func treeOf(t *testing.T, top string) (text string) {
	t.Helper()
	first := map[uint64]string{}
	check(t, filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st := stat(t, path)
		same := ""
		if !d.IsDir() {
			if first[st.Ino] == "" {
				first[st.Ino] = path
			}
			same, _ = filepath.Rel(top, first[st.Ino])
		}
		content := ""
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			check(t, err)
			content = string(data)
		}
		relative, _ := filepath.Rel(top, path)
		text += fmt.Sprintf("%s %o %d:%d %d.%d %q %s\n", relative, st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, content, same)
		return nil
	}))
	return text
}

// A restorer that sees another directory than the one that has the mark restores nothing.
func TestPartOfAnotherTarget(t *testing.T) {
	f := newFixture(t)
	f.partsTree()
	f.newPack()
	other := t.TempDir()
	for _, place := range []string{other, filepath.Join(other, "missing")} {
		o := Options{Target: place, Part: &Part{From: []byte{}, Pages: f.pagesIn, Target: target.Joined{Mark: target.JointMark(f.snapshot), Attempt: 1}}}
		if _, _, err := f.tryRestore(t.Context(), o); !errors.Is(err, target.ErrOther) {
			t.Errorf("restore to %s: %v", place, err)
		}
	}
	wantNames(t, other)
}

// What the index lacks is reported once, by the last part.
func TestPartsReportMissingPagesOnce(t *testing.T) {
	f := newFixture(t)
	f.partsTree()
	f.newPack()
	pages := f.pageSet()
	f.drop("a/y", 0)
	all := f.inParts(Options{Target: filepath.Join(t.TempDir(), "parted"), Pages: pages}, []string{"a/x", "b"}, func([]Part) {})
	for _, obs := range all[:len(all)-1] {
		obs.wantProblems(t)
	}
	all[len(all)-1].wantProblems(t, "a/y")
}

// An existing target keeps its own mode and time.
func TestPartsInAnExistingTarget(t *testing.T) {
	f := newFixture(t)
	f.partsTree()
	f.newPack()
	dir := t.TempDir()
	check(t, os.Chmod(dir, 0o751))
	check(t, os.Chtimes(dir, testTime.Time(), testTime.Time()))
	want := stat(t, dir)
	f.inParts(Options{Target: dir}, []string{"a/x"}, func([]Part) {})
	if got := stat(t, dir); got.Mode != want.Mode || got.Mtim != want.Mtim {
		t.Errorf("%o %v, want %o %v", got.Mode, got.Mtim, want.Mode, want.Mtim)
	}
}
