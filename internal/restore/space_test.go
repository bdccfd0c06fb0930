package restore

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore/target"
)

// sized returns a fixture with directories of files of 1,000 bytes each, of which one has a hole of
// a mebibyte, and its counts.
func sized(t *testing.T) (*fixture, backup.Counts) {
	f := newFixture(t)
	kilobyte := func(name string) backup.Entry {
		data := make([]byte, 1000)
		copy(data, name)
		return f.file(name, string(data))
	}
	sparse := kilobyte("sparse")
	sparse.Size += 1 << 20
	linked := []backup.Entry{kilobyte("one"), kilobyte("one")}
	linked[1].Name = "two"
	linked[0].Nlink, linked[1].Nlink = 2, 2
	f.directory("", subdirectory("a"), subdirectory("b"), kilobyte("top"))
	f.directory("a", kilobyte("x"), subdirectory("deep"), sparse)
	f.directory("a/deep", kilobyte("y"))
	f.directory("b", linked...)
	return f, backup.Counts{Files: 6, Directories: 4, Bytes: 6000 + 1<<20}
}

func room(bytes int64, empty bool) func(string) (target.Space, error) {
	return func(string) (target.Space, error) { return target.Space{Bytes: bytes, Empty: empty}, nil }
}

// Holes need no room, and hard links need it once.
func TestTargetWithoutRoom(t *testing.T) {
	for _, test := range []struct {
		name string
		o    Options
		fits bool
	}{
		{"exactly", Options{space: room(5000, true)}, true},
		{"a byte too much", Options{space: room(4999, true)}, false},
		{"not empty", Options{space: room(1, false)}, true},
		{"not known", Options{space: room(target.Unknown, true)}, true},
		{"ignored", Options{space: room(1, true), IgnoreSpace: true}, true},
		{"a part", Options{Path: "a/deep", space: room(1000, true)}, true},
		{"a part that is too large", Options{Path: "a", space: room(2999, true)}, false},
		{"one file", Options{Path: "top", space: room(999, true)}, false},
		{"included", Options{Include: patterns(t, "/a/deep"), space: room(1000, true)}, true},
		{"included, too large", Options{Include: patterns(t, "/a/deep", "x"), space: room(1999, true)}, false},
		{"excluded", Options{Exclude: patterns(t, "/a"), space: room(2000, true)}, true},
		{"excluded, too large", Options{Exclude: patterns(t, "/a/deep"), space: room(3999, true)}, false},
		{"older", Options{Newer: backup.Time{Sec: testTime.Sec + 1}, space: room(0, true)}, true},
	} {
		for _, dry := range []bool{false, true} {
			name := test.name
			if dry {
				name += ", dry"
			}
			t.Run(name, func(t *testing.T) {
				f, counts := sized(t)
				o := test.o
				o.Counts, o.DryRun, o.Target = counts, dry, filepath.Join(t.TempDir(), "target")
				_, _, err := f.tryRestore(context.Background(), o)
				var no *SpaceError
				if errors.As(err, &no) == test.fits || err != nil && no == nil {
					t.Errorf("%v", err)
				}
				if no != nil {
					wantNothing(t, o.Target)
				}
			})
		}
	}
}

// The measure of what is selected is what the planner then plans.
func TestAmount(t *testing.T) {
	for _, o := range []Options{
		{},
		{Path: "a"},
		{Path: "top"},
		{Include: patterns(t, "y")},
		{Include: patterns(t, "/a")},
		{Include: patterns(t, "deep"), Exclude: patterns(t, "y")},
		{Exclude: patterns(t, "/a/deep", "two")},
		{Protected: []string{"b"}},
		{Newer: testTime},
	} {
		f, _ := sized(t)
		var last Progress
		f.newPack()
		o.Target, o.Snapshot = filepath.Join(t.TempDir(), "target"), f.snapshot
		r := &restorer{o: o, cat: f}
		entry := backup.Entry{Kind: backup.Directory}
		if o.Path == "top" {
			entry = f.file("top", string(make([]byte, 1000)))
		}
		got, err := r.amount(context.Background(), &entry, false)
		check(t, err)
		_, err = Restore(context.Background(), f.deps(), o, &progressObserver{last: &last})
		check(t, err)
		if last.Total != got || last.Files != got.Files || last.Bytes != got.Bytes {
			t.Errorf("%+v: measured %+v, restored %+v", o, got, last)
		}
	}
}

type progressObserver struct {
	observer
	last *Progress
}

func (o *progressObserver) Progress(p Progress) { *o.last = p }

// The room is that of the nearest parent that exists.
func TestSpaceAt(t *testing.T) {
	dir := t.TempDir()
	var st unix.Statfs_t
	check(t, unix.Statfs(dir, &st))
	s, err := target.SpaceAt(filepath.Join(dir, "no", "such"))
	check(t, err)
	if !s.Empty || s.Bytes <= 0 || s.Bytes > int64(st.Blocks)*st.Bsize {
		t.Errorf("%+v", s)
	}
	write(t, filepath.Join(dir, "file"), "x", testTime)
	if s, err = target.SpaceAt(dir); err != nil || s.Empty {
		t.Errorf("%+v, %v", s, err)
	}
}
