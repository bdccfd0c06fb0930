package read

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

// faulty makes the fixture's reader read through a faultsource.
func (f *fixture) faulty() *faultsource.Source {
	s := faultsource.New(f.reader.Source)
	f.reader.Source = s
	return s
}

func fault(call faultsource.Call, path string, errno syscall.Errno, times int) faultsource.Fault {
	return faultsource.Fault{Call: call, Path: path, Times: times, Err: faultsource.Posix(call, errno)}
}

// answer makes an attempt, and returns its message to the committer.
func (f *fixture) answer(msg *backup.ReadBatch) (m *backup.BatchStored, err error) {
	f.Helper()
	return f.answerAt(msg, 1)
}

// answerAt is answer at one of several looks.
func (f *fixture) answerAt(msg *backup.ReadBatch, looks int) (m *backup.BatchStored, err error) {
	f.Helper()
	send := f.reader.sendBatch
	defer func() { f.reader.sendBatch = send }()
	f.reader.sendBatch = func(_ context.Context, stored *backup.BatchStored) error { m = stored; return nil }
	err = f.reader.look(f.ctx, msg, looks)
	return m, err
}

// wantLeftToOthers fails the test unless an attempt ends because the tree is a different one, and
// the batch fails if there are no other readers, or enough of them have looked.
func (f *fixture) wantLeftToOthers(attempt func(looks int) (*backup.BatchStored, error), msg *backup.ReadBatch) {
	f.Helper()
	for _, test := range []struct {
		alone   bool
		attempt int32
		looks   int
		fails   bool
	}{
		{false, 1, 1, false}, {false, 1, 100, false}, {false, blindAttempts, blindLooks - 1, false}, {false, blindAttempts - 1, blindLooks, false},
		{false, blindAttempts, blindLooks, true}, {true, 1, 1, true},
	} {
		f.reader.opts.Alone, msg.Attempt = test.alone, test.attempt
		m, err := attempt(test.looks)
		switch {
		case !test.fails && (m != nil || !source.IsOtherTree(err)):
			f.Errorf("attempt %d: %+v, error %v; want that another tree is there", test.attempt, m, err)
		case test.fails && (err != nil || m == nil || m.Failed == "" || len(m.Pages) > 0):
			f.Errorf("attempt %d, alone %v: %+v, error %v; want that the batch fails", test.attempt, test.alone, m, err)
		}
	}
}

// If a file system is unmounted while its files are read, they do not count as gone, whether
// nothing is there then or other files are.
func TestMountVanishesInMidRead(t *testing.T) {
	for name, below := range map[string]treetest.Tree{
		"nothing is below": nil,
		"the same names":   {"mnt/a/1": treetest.File("another"), "mnt/a/2": treetest.File("file"), "mnt/b/3": treetest.File("again")},
	} {
		for _, at := range []string{"mnt/a", "mnt/b"} {
			for _, base := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/base=%v", name, at, base), func(t *testing.T) {
					f := newFixture(t, treetest.Tree{"mnt": treetest.Dir(), "plain": treetest.Dir(), "plain/file": treetest.File("p")})
					treetest.Make(t, f.dir, below)
					from := t.TempDir()
					treetest.Make(t, from, treetest.Tree{"a/1": treetest.File("one"), "a/2": treetest.File("two"), "b/3": treetest.File("three")})
					mount := func() func() { return treetest.Bind(t, from, filepath.Join(f.dir, "mnt")) }
					unmount := mount()
					f.mounts = []string{"mnt"}
					if base {
						f.read(f.batchOf("plain", "mnt/a", "mnt/b"))
						f.commit()
					}
					msg := f.batchOf("plain", "mnt/a", "mnt/b")
					faults := f.faulty()
					f.wantLeftToOthers(func(looks int) (*backup.BatchStored, error) {
						defer faults.Inject(faultsource.Fault{Call: faultsource.OpenDirectory, Path: at, Times: 1, Do: unmount}).Lift()
						defer func() { unmount = mount() }()
						return f.answerAt(msg, looks)
					}, msg)
					msg.Attempt = 1
					f.read(msg)
					f.commit()
					f.wantTree()
				})
			}
		}
	}
}

// A reader that sees another tree at the source, or none, reports nothing of it.
func TestBlindReader(t *testing.T) {
	for name, becomeBlind := range map[string]func(f *fixture) error{
		"an empty directory": func(f *fixture) error { return os.Mkdir(f.dir, 0o755) },
		"another tree": func(f *fixture) error {
			treetest.Make(f, f.dir, treetest.Tree{"a": treetest.Dir(), "a/1": treetest.File("another")})
			return nil
		},
		"nothing":      func(*fixture) error { return nil },
		"no directory": func(f *fixture) error { return os.WriteFile(f.dir, nil, 0o600) },
	} {
		for _, base := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/base=%v", name, base), func(t *testing.T) {
				f := newFixture(t, treetest.Tree{"a": treetest.Dir(), "a/1": treetest.File("one"), "a/2": treetest.File("two")})
				if base {
					f.read(f.batchOf("a"))
					f.commit()
				}
				msg := f.batchOf("a")
				if err := errors.Join(os.Rename(f.dir, f.dir+"-meant"), becomeBlind(f)); err != nil {
					t.Fatal(err)
				}
				f.wantLeftToOthers(func(looks int) (*backup.BatchStored, error) { return f.answerAt(msg, looks) }, msg)
				if err := errors.Join(os.RemoveAll(f.dir), os.Rename(f.dir+"-meant", f.dir)); err != nil {
					t.Fatal(err)
				}
				msg.Attempt = 1
				f.read(msg)
				f.commit()
				f.wantTree()
			})
		}
	}
}

// If the root has no identity, files count as gone only if another entry of their directory still
// exists.
func TestGoneWithoutAnIdentity(t *testing.T) {
	for name, test := range map[string]struct {
		gone    []string
		believe bool
	}{
		"some":             {[]string{"a/1", "a/2"}, true},
		"all in one":       {[]string{"a/1", "a/2", "a/3"}, false},
		"the directory":    {[]string{"a"}, false},
		"the only one":     {[]string{"one/file"}, true},
		"some of the root": {[]string{"top"}, true},
		"all of the root":  {[]string{"top", "other"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, treetest.Tree{
				"a": treetest.Dir(), "a/1": treetest.File("1"), "a/2": treetest.File("2"), "a/3": treetest.File("3"),
				"one": treetest.Dir(), "one/file": treetest.File("x"), "top": treetest.File("t"), "other": treetest.File("o"),
			})
			pages := []string{"a", "one", ""}
			f.begin()
			listed := f.pagesOf(pages...)
			if name == "all of the root" { // its subdirectories have to be gone as well
				listed = f.withoutDirectories(listed)
			}
			f.announce(listed)
			msg := f.claim()
			msg.Job.Root, msg.Job.Compare = backup.Root{FileSystem: msg.Job.Root.FileSystem}, backup.CompareMtime|backup.CompareCtime
			for _, path := range test.gone {
				if err := os.RemoveAll(filepath.Join(f.dir, path)); err != nil {
					t.Fatal(err)
				}
			}
			m, err := f.answer(msg)
			if !test.believe {
				if m != nil || !errors.Is(err, backup.ErrUnavailable) {
					t.Errorf("%+v, error %v; want that it is tried again", m, err)
				}
				return
			}
			if err != nil || m.Counts.Vanished != int64(len(test.gone)) || m.Counts.Errors != 0 {
				t.Errorf("%+v, error %v; want %d files gone", m, err, len(test.gone))
			}
		})
	}
}

// withoutDirectories drops subdirectories from listings.
func (f *fixture) withoutDirectories(pages []backup.PageVersion) []backup.PageVersion {
	f.Helper()
	for i, v := range pages {
		p := must(listing.DecodePage(v))(f)
		p.Entries = slices.DeleteFunc(p.Entries, func(e backup.Entry) bool { return e.Kind == backup.Directory })
		pages[i].Listing = must(listing.Encode(nil, &p))(f)
	}
	return pages
}

// A file that vanishes between walk and read is counted, and not reported as a problem.
func TestVanishedIsCounted(t *testing.T) {
	f := newFixture(t, treetest.Tree{"gone": treetest.File("12345"), "replaced": treetest.File("123"), "stays": treetest.File("1")})
	msg := f.batchOf("")
	for _, err := range []error{
		os.Remove(filepath.Join(f.dir, "gone")), os.Remove(filepath.Join(f.dir, "replaced")), os.Mkdir(filepath.Join(f.dir, "replaced"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := f.answer(msg)
	if err != nil {
		t.Fatal(err)
	}
	c := m.Counts
	f.read(msg)
	f.commit()
	if want := (backup.Counts{Files: -2, Bytes: -8, Vanished: 2}); c.Files != want.Files || c.Bytes != want.Bytes || c.Vanished != want.Vanished || c.Errors+c.Carried+c.Torn != 0 {
		t.Errorf("counts %+v, want %+v", c, want)
	}
	if p := f.problems(); len(p) > 0 {
		t.Errorf("problems %v", p)
	}
	f.wantTree()
	f.wantLookedAtAgain("")
}

// A file with a stale handle is opened again, and read; if the handle is stale again, it is a
// problem, and never a file that is gone.
func TestStaleFile(t *testing.T) {
	for _, call := range []faultsource.Call{
		faultsource.OpenFile, faultsource.StatFile, faultsource.Extent, faultsource.Read, faultsource.FileXattrs, faultsource.OpenDirectory,
	} {
		path := "d/file"
		if call == faultsource.OpenDirectory {
			path = "d"
		}
		for _, after := range []int{0, 1} {
			t.Run(fmt.Sprint(call, "/", after), func(t *testing.T) {
				f := newFixture(t, treetest.Tree{"d": treetest.Dir(), "d/file": treetest.File(random(1, 3<<20)).WithXattr("user.x", "1"), "d/other": treetest.File("x")})
				f.read(f.batchOf("d"))
				f.commit()
				if err := os.WriteFile(filepath.Join(f.dir, "d/file"), []byte(random(2, 3<<20+1)), 0o600); err != nil {
					t.Fatal(err)
				}
				faults := f.faulty()
				once := fault(call, path, unix.ESTALE, 1)
				once.After = after
				faults.Inject(once)
				f.read(f.batchOf("d"))
				f.commit()
				f.wantTree()
				if p := f.problems(); len(p) > 0 {
					t.Errorf("once: problems %v", p)
				}
				good := f.entries()["d/file"]
				if err := os.WriteFile(filepath.Join(f.dir, "d/file"), []byte(random(3, 3<<20)), 0o600); err != nil {
					t.Fatal(err)
				}
				always := faults.Inject(fault(call, path, unix.ESTALE, 0))
				f.read(f.batchOf("d"))
				f.commit()
				e := f.entries()["d/file"]
				if call == faultsource.FileXattrs {
					if e.Flags.WithClass(backup.Unclassified)&^backup.Racy != backup.XattrsUnreadable || len(e.Xattrs) != 1 {
						t.Errorf("always: %+v", e)
					}
				} else if e.Flags&backup.Unreadable == 0 || e.Size != good.Size || e.Mtime != good.Mtime || string(f.content(&e)) != random(2, 3<<20+1) {
					t.Errorf("always: %+v, want the last good copy", e)
				}
				if p := f.problems(); len(p) == 0 || p[0].Path != "d/file" {
					t.Errorf("always: problems %v", p)
				}
				if c := must(f.idx.Snapshot(f.ctx, f.snap.ID))(t).Counts; c.Vanished != 0 {
					t.Errorf("%d files count as gone", c.Vanished)
				}
				always.Lift()
				f.read(f.batchOf("d"))
				f.commit()
				f.wantTree()
			})
		}
	}
}

// An error of an open file does not show that its name is gone: opening it again does.
func TestOpenFileIsNotGone(t *testing.T) {
	for _, call := range []faultsource.Call{faultsource.StatFile, faultsource.Extent, faultsource.Read, faultsource.FileXattrs} {
		f := newFixture(t, treetest.Tree{"file": treetest.File("content"), "other": treetest.File("x")})
		faults := f.faulty()
		faults.Inject(fault(call, "file", unix.ENOENT, 1))
		f.read(f.batchOf(""))
		f.commit()
		f.wantTree()
		faults.Inject(fault(call, "file", unix.ENOENT, 0))
		f.read(f.batchOf(""))
		f.commit()
		if _, ok := f.entries()["file"]; !ok || len(f.problems()) != 1 {
			t.Errorf("%s: in the snapshot: %v; problems %v", call, ok, f.problems())
		}
	}
}

// A read that ends early is repeated; a file that ends early each time could not be read, although
// no call has failed.
func TestShortReads(t *testing.T) {
	for _, size := range []int{1000, 1 << 20, 3 << 20} {
		for _, times := range []int{1, readTries - 1, 0} {
			t.Run(fmt.Sprint(size, "/", times), func(t *testing.T) {
				f := newFixture(t, treetest.Tree{"file": treetest.File(random(1, size))})
				f.read(f.batchOf(""))
				f.commit()
				if err := os.WriteFile(filepath.Join(f.dir, "file"), []byte(random(2, size)), 0o600); err != nil {
					t.Fatal(err)
				}
				f.faulty().Inject(faultsource.Fault{Call: faultsource.Read, Path: "file", From: int64(size / 2), Times: times, Short: true})
				f.read(f.batchOf(""))
				f.commit()
				if times > 0 {
					f.wantTree()
					if p := f.problems(); len(p) > 0 {
						t.Errorf("problems %v", p)
					}
					return
				}
				e := f.entries()["file"]
				if e.Flags&backup.Unreadable == 0 || string(f.content(&e)) != random(1, size) || len(f.problems()) != 1 {
					t.Errorf("%+v, problems %v; want the last good copy", e, f.problems())
				}
			})
		}
	}
}

// A shortage of resources on this machine ends the attempt, and is not attributed to a file.
func TestShortOfSomething(t *testing.T) {
	for _, call := range []faultsource.Call{
		faultsource.OpenRoot, faultsource.OpenDirectory, faultsource.OpenFile, faultsource.StatFile, faultsource.Extent, faultsource.Read, faultsource.FileXattrs,
	} {
		path := map[faultsource.Call]string{faultsource.OpenRoot: "", faultsource.OpenDirectory: ""}
		for _, errno := range []syscall.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS} {
			f := newFixture(t, treetest.Tree{"file": treetest.File("content"), "other": treetest.File("x")})
			faults := f.faulty()
			at, ok := path[call]
			if !ok {
				at = "file"
			}
			faults.Inject(fault(call, at, errno, 1))
			msg := f.batchOf("")
			if err := f.reader.try(f.ctx, msg); !source.IsTransient(err) || source.IsOtherTree(err) {
				t.Errorf("%s: %v: error %v", call, errno, err)
			}
			f.read(msg)
			f.commit()
			f.wantTree()
			if p := f.problems(); len(p) > 0 {
				t.Errorf("%s: %v: problems %v", call, errno, p)
			}
		}
	}
}

// A hardlinked file is read once, and all its names have its content and its extended attributes,
// wherever these are stored.
func TestHardlinksAreReadOnce(t *testing.T) {
	for name, attribute := range map[string]string{"inline": "value", "in a chunk": random(1, inlineXattrBytes)} {
		t.Run(name, func(t *testing.T) {
			content := random(2, 100_000)
			f := newFixture(t, treetest.Tree{
				"a": treetest.Dir(), "a/1": treetest.File(content).WithXattr("user.x", attribute), "a/2": treetest.HardLink("a/1"),
				"b": treetest.Dir(), "b/3": treetest.HardLink("a/1"),
			})
			faults := f.faulty()
			faults.Count()
			f.read(f.batchOf("a", "b"))
			f.commit()
			reads, xattrs := 0, 0
			for _, path := range []string{"a/1", "a/2", "b/3"} {
				reads += faults.Asked(faultsource.Read, path)
				xattrs += faults.Asked(faultsource.FileXattrs, path)
				e := f.entries()[path]
				if got := f.xattrs(&e); string(f.content(&e)) != content || len(got) != 1 || string(got[0].Value) != attribute || e.Nlink != 3 {
					t.Errorf("%s: %+v", path, e)
				}
			}
			if c := must(f.idx.Snapshot(f.ctx, f.snap.ID))(t).Counts; reads != 1 || xattrs != 1 || c.ReadBytes != int64(len(content)) {
				t.Errorf("%d reads, %d of attributes, %d bytes", reads, xattrs, c.ReadBytes)
			}
		})
	}
}

// The last good copy of a file is found where its directory was before it moved, but not in another
// directory that had its inode.
func TestLastCopyOfAMovedDirectory(t *testing.T) {
	for _, moved := range []bool{true, false} {
		f := newFixture(t, treetest.Tree{"was": treetest.Dir(), "was/file": treetest.File("good").WithXattr("user.x", "1")})
		f.read(f.batchOf("was"))
		f.commit()
		if err := os.Rename(filepath.Join(f.dir, "was"), filepath.Join(f.dir, "is")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(f.dir, "is/file"), []byte("changed"), 0o600); err != nil {
			t.Fatal(err)
		}
		faults := f.faulty()
		if !moved { // another directory has been given its inode
			f.reader.Source = bornSource{faults, backup.Time{Sec: 1}}
		}
		faults.Inject(fault(faultsource.Read, "is/file", unix.EIO, 0))
		f.read(f.batchOf("is"))
		f.commit()
		e := f.entries()["is/file"]
		if moved && (e.Flags.WithClass(backup.Unclassified)&^backup.Racy != backup.Unreadable || string(f.content(&e)) != "good" || len(e.Xattrs) != 1) {
			t.Errorf("%+v, want the last good copy", e)
		}
		if want := backup.Unreadable | backup.ContentMissing; !moved && (e.Flags&want != want || len(e.Content.Refs) > 0) {
			t.Errorf("%+v, want nothing of the other directory", e)
		}
	}
}

// A bornSource reports another birth time for directories.
type bornSource struct {
	source.Source
	born backup.Time
}

func (s bornSource) Open(ctx context.Context, url string) (source.Tree, error) {
	t, err := s.Source.Open(ctx, url)
	return bornTree{t, s.born}, err
}

type bornTree struct {
	source.Tree
	born backup.Time
}

func (t bornTree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	d, err := t.Tree.OpenDirectory(ctx, path)
	return bornDirectory{d, t.born}, err
}

type bornDirectory struct {
	source.Directory
	born backup.Time
}

func (d bornDirectory) Self() backup.Entry {
	e := d.Directory.Self()
	e.Btime = d.born
	return e
}

// The content of list chunks is reported in each attempt, also if the chunks are stored already:
// the reader that stored them may have died before it reported.
func TestListsAreToldInEachAttempt(t *testing.T) {
	defer func(n int) { listRefs = n }(listRefs)
	listRefs = 3
	f := newFixture(t, treetest.Tree{"file": treetest.File(random(1, 24<<20))})
	msg := f.batchOf("")
	told := map[backup.ChunkID]int{}
	apply := f.reader.sendLists
	f.reader.sendLists = func(ctx context.Context, m *backup.ListsStored) error {
		for _, l := range m.Lists {
			told[l.List]++
		}
		return nil // and dies
	}
	if _, err := f.answer(msg); err != nil {
		t.Fatal(err)
	}
	lists := len(told)
	if err := f.reader.try(f.ctx, msg); !errors.Is(err, index.ErrListUnknown) {
		t.Errorf("error %v, want that the committer does not know the lists", err)
	}
	f.reader = f.newReader(Options{})
	f.reader.sendLists = func(ctx context.Context, m *backup.ListsStored) error {
		for _, l := range m.Lists {
			told[l.List]++
		}
		return apply(ctx, m)
	}
	f.read(msg)
	f.commit()
	f.wantTree()
	if lists == 0 || len(told) != lists {
		t.Errorf("%d lists, then %d", lists, len(told))
	}
	for id, times := range told {
		if times != 3 {
			t.Errorf("list %v was told %d times in three attempts", id, times)
		}
	}
}
