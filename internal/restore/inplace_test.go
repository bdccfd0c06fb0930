package restore

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/restore/target"
)

const inPlaceChunk = 64 << 10

// A wide file has more than one chunk can have. Its content is random, with a hole of each index in
// holes.
func (f *fixture) wide(name string, seed byte, chunks int, holes ...int) (backup.Entry, []byte) {
	random := rand.NewChaCha8([32]byte{seed})
	var content []byte
	var hole int64
	e := entry(name, backup.File)
	for i := range chunks {
		data := make([]byte, inPlaceChunk)
		if slices.Contains(holes, i) {
			hole += inPlaceChunk
		} else {
			_, _ = random.Read(data)
			e.Content.Refs = append(e.Content.Refs, f.chunk(data, hole))
			hole = 0
		}
		content = append(content, data...)
	}
	e.Size = int64(len(content))
	return e, content
}

const wideChunks = chunk.MaxBytes/inPlaceChunk + 4

// Only what differs is written, into the same inode, whatever the old content was.
func TestUpdateInPlace(t *testing.T) {
	f := newFixture(t)
	e, want := f.wide("file", 1, wideChunks, 2, 3, wideChunks-1)
	e.Content = f.list(1, e.Content.Refs...)
	f.directory("", e)
	changed := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(want)) }
	const whole = int64(wideChunks-3) * inPlaceChunk
	for name, test := range map[string]struct {
		old     []byte
		written int64
	}{
		"equal":            {want, 0},
		"a byte":           {changed(func(b []byte) []byte { b[inPlaceChunk+5]++; return b }), inPlaceChunk},
		"two chunks":       {changed(func(b []byte) []byte { b[0]++; b[len(b)-1-inPlaceChunk]++; return b }), 2 * inPlaceChunk},
		"in a hole":        {changed(func(b []byte) []byte { b[2*inPlaceChunk+7] = 1; return b }), 0},
		"in the last hole": {changed(func(b []byte) []byte { b[len(b)-1] = 1; return b }), 0},
		"longer":           {changed(func(b []byte) []byte { return append(b, "more"...) }), 0},
		"shorter":          {changed(func(b []byte) []byte { return b[:len(b)-2*inPlaceChunk-1] }), 2 * inPlaceChunk},
		"shifted":          {changed(func(b []byte) []byte { return append([]byte("x"), b...) }), whole},
		"other":            {bytes.Repeat([]byte("y"), len(want)), whole},
	} {
		t.Run(name, func(t *testing.T) {
			to := t.TempDir()
			path := filepath.Join(to, "file")
			write(t, path, string(test.old), backup.Time{Sec: 1})
			before := stat(t, path)
			for _, dry := range []bool{true, false} {
				sum, obs := f.restore(Options{Target: to, InPlace: true, DryRun: dry})
				if sum.Bytes != test.written || sum.Files != 1 || !slices.Contains(obs.actions(), "update file") {
					t.Errorf("dry %v: %+v %q, want %d bytes", dry, sum, obs.actions(), test.written)
				}
			}
			after := stat(t, path)
			wantFile(t, path, string(want))
			if after.Ino != before.Ino || after.Mtim.Sec != testTime.Sec {
				t.Errorf("%+v became %+v", before, after)
			}
			if allocated := after.Blocks * 512; name == "in a hole" && allocated > int64(len(want))-2*inPlaceChunk {
				t.Errorf("%d bytes are allocated: the hole was not made", allocated)
			}
			if sum, _ := f.restore(Options{Target: to, InPlace: true}); sum.Kept != 1 {
				t.Errorf("again: %+v", sum)
			}
		})
	}
}

// A file is replaced if its inode is not only this file's, or grants other rights, or is small.
func TestNotInPlace(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(t *testing.T, path string)
		o       Options
	}{
		"hard link":  {func(t *testing.T, path string) { check(t, os.Link(path, path+".other")) }, Options{}},
		"other mode": {func(t *testing.T, path string) { check(t, os.Chmod(path, 0o666)) }, Options{}},
		"xattr":      {func(t *testing.T, path string) { check(t, unix.Setxattr(path, "user.x", []byte("x"), 0)) }, Options{}},
		"small":      {func(t *testing.T, path string) { check(t, os.Truncate(path, chunk.MaxBytes)) }, Options{}},
		"symlink": {func(t *testing.T, path string) {
			check(t, os.Rename(path, path+".other"))
			check(t, os.Symlink(path+".other", path))
		}, Options{}},
		"not asked":    {func(*testing.T, string) {}, Options{InPlace: false}},
		"a newer file": {func(*testing.T, string) {}, Options{Overwrite: IfNewer}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			e, want := f.wide("file", 1, wideChunks)
			f.directory("", e)
			to := t.TempDir()
			path := filepath.Join(to, "file")
			old := bytes.Repeat([]byte("y"), len(want))
			write(t, path, string(old), backup.Time{Sec: 1})
			test.prepare(t, path)
			before := stat(t, path)
			o := test.o
			o.Target, o.InPlace = to, name != "not asked"
			_, obs := f.restore(o)
			if !slices.Contains(obs.actions(), "replace file") {
				t.Errorf("%q", obs.actions())
			}
			wantFile(t, path, string(want))
			if stat(t, path).Ino == before.Ino {
				t.Error("the inode is the same")
			}
			if _, err := os.Lstat(path + ".other"); err == nil {
				wantFile(t, path+".other", string(old))
			}
		})
	}
}

// Whichever call fails, or is the last before a crash, the file does not look finished, and the
// next run finishes it.
func TestInPlaceFails(t *testing.T) {
	for _, mtime := range []backup.Time{{Sec: 1}, testTime} {
		for _, call := range []target.Call{target.CallWrite, target.CallPunch, target.CallTruncate, target.CallFsync, target.CallClose, target.CallSetTime} {
			for _, done := range []bool{false, true} {
				if call == target.CallClose && !done {
					continue // close always takes effect
				}
				f := newFixture(t)
				e, want := f.wide("file", 1, wideChunks, 3)
				f.directory("", e)
				to := t.TempDir()
				path := filepath.Join(to, "file")
				old := bytes.Clone(want)
				old[0]++
				old[3*inPlaceChunk]++
				old[5*inPlaceChunk]++
				old = append(old, "more"...)
				write(t, path, string(old), mtime)
				failed := false
				sum, obs, err := f.tryRestore(context.Background(), Options{Target: to, InPlace: true, Overwrite: Always, NoSync: true, fault: func(c target.Call, _ string, after bool) error {
					got := stat(t, path)
					finished := c == target.CallClose || c == target.CallSetTime && after
					if !finished && mtimeOf(got) == testTime && c != target.CallSetTime {
						t.Errorf("before or after %s, the file looks finished", c)
					}
					if c != call || after != done || failed {
						return nil
					}
					failed = true
					return errors.New("injected")
				}})
				check(t, err)
				switch {
				case !failed:
					t.Errorf("%s was not called", call)
				case sum.Problems == 0:
					t.Errorf("%s (done %v): no problem: %v", call, done, obs.changes)
				}
				got, err := os.ReadFile(path)
				check(t, err)
				if mtimeOf(stat(t, path)) == testTime && !bytes.Equal(got, want) && !bytes.Equal(got, old) {
					t.Errorf("%s (done %v): it looks finished", call, done)
				}
				_, obs = f.restore(Options{Target: to, InPlace: true})
				obs.wantProblems(t)
				wantFile(t, path, string(want))
			}
		}
	}
}

// If content is missing in the store, the file is named, and does not look finished.
func TestInPlaceWithoutContent(t *testing.T) {
	f := newFixture(t)
	e, want := f.wide("file", 1, wideChunks)
	f.directory("", e)
	f.newPack()
	delete(f.at, e.Content.Refs[5].Chunk)
	to := t.TempDir()
	path := filepath.Join(to, "file")
	write(t, path, string(bytes.Repeat([]byte("y"), len(want))), testTime)
	_, obs := f.restore(Options{Target: to, InPlace: true, Overwrite: Always})
	obs.wantProblems(t, "file")
	if mtimeOf(stat(t, path)) == testTime && !isUnchanged(t, path) {
		t.Error("the file looks finished")
	}
}

func isUnchanged(t *testing.T, path string) bool {
	got, err := os.ReadFile(path)
	check(t, err)
	return len(bytes.Trim(got, "y")) == 0
}

func mtimeOf(st unix.Stat_t) backup.Time {
	return backup.Time{Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec)}
}
