package faultsource_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/source/treetest"
)

func value[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

var errFault = errors.New("fault")

// A fault happens for its call and its path, when and as often as it should.
func TestFaults(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{
		"d/a": treetest.File("0123456789"), "d/b": treetest.File("b"), "d/link": treetest.Symlink("x"), "d/fifo": treetest.FIFO(), "e/a": treetest.File("x"),
	})
	for call, path := range map[faultsource.Call]string{
		faultsource.OpenRoot: "", faultsource.Resolve: "", faultsource.Check: "", faultsource.OpenDirectory: "d", faultsource.StatDirectory: "d",
		faultsource.List: "d", faultsource.DirectoryXattrs: "d", faultsource.StatEntry: "d/a", faultsource.ReadLink: "d/link",
		faultsource.EntryXattrs: "d/fifo", faultsource.OpenFile: "d/a", faultsource.StatFile: "d/a", faultsource.Extent: "d/a",
		faultsource.Read: "d/a", faultsource.FileXattrs: "d/a",
	} {
		for name, test := range map[string]struct {
			after, times int
			want         []bool // whether it happens at each of several calls
		}{
			"always": {0, 0, []bool{true, true, true, true}}, "once": {0, 1, []bool{true, false, false, false}},
			"later": {2, 0, []bool{false, false, true, true}}, "once, later": {1, 2, []bool{false, true, true, false}},
		} {
			t.Run(string(call)+"/"+name, func(t *testing.T) {
				s := faultsource.New(posix.New(posix.Options{}))
				done := 0
				fault := s.Inject(faultsource.Fault{Call: call, Path: path, After: test.after, Times: test.times, Err: errFault, Do: func() { done++ }})
				var got []bool
				for range test.want {
					got = append(got, fails(t, s, posix.URL(dir), call))
				}
				if happened := fault.Happened(); !slices.Equal(got, test.want) || happened != done {
					t.Errorf("it happens %v, want %v; %d times, %d done", got, test.want, happened, done)
				}
				fault.Lift()
				fault.Lift()
				if fails(t, s, posix.URL(dir), call) {
					t.Error("it happens although it was lifted")
				}
			})
		}
	}
}

// fails makes every call once, and reports whether one of them fails. The failed one must be call.
func fails(t *testing.T, s *faultsource.Source, url string, call faultsource.Call) (failed bool) {
	t.Helper()
	ctx := t.Context()
	note := func(of faultsource.Call, err error) bool {
		t.Helper()
		if errors.Is(err, errFault) {
			if failed = true; of != call {
				t.Errorf("%s fails, and %s was to", of, call)
			}
		} else if err != nil && !errors.Is(err, io.EOF) && of != faultsource.Resolve {
			t.Errorf("%s: %v", of, err)
		}
		return err == nil || errors.Is(err, io.EOF)
	}
	_, err := s.Resolve(ctx, url, "missing*")
	note(faultsource.Resolve, err)
	tree, err := s.Open(ctx, url)
	if !note(faultsource.OpenRoot, err) {
		return failed
	}
	defer tree.Close()
	note(faultsource.Check, tree.Check(ctx))
	directory := faultsource.OpenDirectory
	if call == faultsource.StatDirectory {
		directory = call
	}
	other, err := tree.OpenDirectory(ctx, "e")
	note(faultsource.Call("another directory"), err)
	_ = other.Close()
	d, err := tree.OpenDirectory(ctx, "d")
	if !note(directory, err) {
		return failed
	}
	defer d.Close()
	entry := faultsource.StatEntry
	if call == faultsource.ReadLink {
		entry = call
	}
	entries, _, err := d.Read(ctx, nil, func(_, _ string, err error) { note(entry, err) })
	if note(faultsource.List, err); len(entries) != 4 && call != faultsource.List && call != entry {
		t.Errorf("%d entries", len(entries))
	}
	_, err = d.Xattrs(ctx, "", backup.Directory)
	note(faultsource.DirectoryXattrs, err)
	_, err = d.Xattrs(ctx, "fifo", backup.FIFO)
	note(faultsource.EntryXattrs, err)
	f, err := d.OpenFile(ctx, "a")
	if !note(faultsource.OpenFile, err) {
		return failed
	}
	defer f.Close()
	_, err = f.Stat()
	note(faultsource.StatFile, err)
	_, _, err = f.NextExtent(0, 10)
	note(faultsource.Extent, err)
	_, err = f.ReadAt(make([]byte, 10), 0)
	note(faultsource.Read, err)
	_, err = f.Xattrs()
	note(faultsource.FileXattrs, err)
	return failed
}

// A read is short, or fails, from an offset on, and hangs until the fault is lifted.
func TestReads(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{"file": treetest.File("0123456789")})
	s := faultsource.New(posix.New(posix.Options{}))
	tree := value(s.Open(t.Context(), posix.URL(dir)))(t)
	defer tree.Close()
	d := value(tree.OpenDirectory(t.Context(), ""))(t)
	defer d.Close()
	f := value(d.OpenFile(t.Context(), "file"))(t)
	defer f.Close()
	read := func(offset int64, length int) (string, error) {
		p := make([]byte, length)
		n, err := f.ReadAt(p, offset)
		return string(p[:n]), err
	}
	short := s.Inject(faultsource.Fault{Call: faultsource.Read, Path: "file", From: 5, Short: true})
	for _, test := range []struct {
		offset int64
		length int
		want   string
		end    bool
	}{{0, 5, "01234", false}, {0, 6, "012", true}, {6, 4, "67", true}} {
		if got, err := read(test.offset, test.length); got != test.want || (err != nil) != test.end || err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("%d bytes at %d: %q, error %v; want %q", test.length, test.offset, got, err, test.want)
		}
	}
	short.Lift()
	began, answered := make(chan struct{}), make(chan string)
	hang := s.Inject(faultsource.Fault{Call: faultsource.Read, Path: "file", Hang: true, Do: func() { close(began) }})
	go func() {
		got, err := read(0, 3)
		if err != nil {
			got = err.Error()
		}
		answered <- got
	}()
	<-began
	select {
	case got := <-answered:
		t.Errorf("it does not hang: %q", got)
	default:
	}
	hang.Lift()
	if got := <-answered; got != "012" {
		t.Errorf("answer %q once it goes on", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	s.Inject(faultsource.Fault{Call: faultsource.Check, Hang: true, Err: faultsource.Posix(faultsource.Check, syscall.EIO)})
	if err := tree.Check(ctx); !errors.Is(err, backup.ErrUnavailable) || ctx.Err() == nil {
		t.Errorf("error %v of a call whose context ended", err)
	}
}

func TestCountAndClock(t *testing.T) {
	dir := t.TempDir()
	treetest.Make(t, dir, treetest.Tree{"file": treetest.File("x")})
	s := faultsource.New(posix.New(posix.Options{}))
	tree := value(s.Open(t.Context(), posix.URL(dir)))(t)
	defer tree.Close()
	s.Count()
	for range 3 {
		d := value(tree.OpenDirectory(t.Context(), ""))(t)
		_ = d.Close()
	}
	if n := s.Asked(faultsource.OpenDirectory, ""); n != 3 || s.Asked(faultsource.OpenRoot, "") != 0 {
		t.Errorf("asked %d times", n)
	}
	s.SetClock(func() (time.Time, time.Duration) { return time.Unix(7, 0), time.Second })
	if now, behind := tree.Clock(); now.Unix() != 7 || behind != time.Second {
		t.Errorf("%v, %v", now, behind)
	}
}
