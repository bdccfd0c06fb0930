package nfs3_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/nfs3/nfs3test"
	"github.com/bctl/bctl/internal/nfs3/rpc"
	"github.com/bctl/bctl/internal/nfs3/rpc/rpctest"
	"github.com/bctl/bctl/internal/nfs3/xdr"
)

// open returns a client of a server, and the handle of its export.
func open(t testing.TB, s *nfs3test.Server) (*nfs3.Client, nfs3.Handle) {
	t.Helper()
	o := rpc.Options{Address: s.Address(), Timeout: 300 * time.Millisecond, RetryFor: 20 * time.Second}
	c, m := nfs3.New(o), nfs3.NewMounter(o)
	t.Cleanup(func() { c.Close(); m.Close() })
	mounted, err := m.Mount(context.Background(), "/export")
	if err != nil {
		t.Fatal(err)
	}
	return c, mounted.Root
}

func TestMount(t *testing.T) {
	s := nfs3test.Serve(t)
	m := nfs3.NewMounter(s.Options())
	defer m.Close()
	got, err := m.Mount(t.Context(), "/export")
	if err != nil || got.Root == "" || len(got.Flavors) != 1 || got.Flavors[0] != nfs3.FlavorSys {
		t.Errorf("%+v, error %v", got, err)
	}
	if _, err := m.Mount(t.Context(), "/other"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want ErrNotExist", err)
	}
	if _, err := m.Mount(t.Context(), strings.Repeat("x", 2000)); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("error %v, want ENAMETOOLONG", err)
	}
}

func TestReading(t *testing.T) {
	s := nfs3test.Serve(t)
	content := strings.Repeat("content ", 1000)
	file := s.Add(s.Root, "file", nfs3.Regular, content)
	s.Add(s.Root, "link", nfs3.Symlink, "to/somewhere")
	s.Do(func() {
		file.Attr.Device, file.Attr.Used, file.Attr.Mtime = nfs3.Device{Major: 3, Minor: 4}, 5, nfs3.Time{Sec: 1<<32 - 1, Nsec: 6}
	})
	c, root := open(t, s)
	found, err := c.Lookup(t.Context(), root, "file")
	if err != nil || !found.Attr.Known || found.Attr.Attr != file.Attr {
		t.Fatalf("%+v, error %v; want %+v", found, err, file.Attr)
	}
	if a, err := c.GetAttr(t.Context(), found.Handle); a != file.Attr || err != nil {
		t.Errorf("%+v, error %v; want %+v", a, err, file.Attr)
	}
	if granted, err := c.Access(t.Context(), found.Handle, nfs3.AccessRead|nfs3.AccessModify); granted != 5 || err != nil {
		t.Errorf("granted %d, error %v", granted, err)
	}
	buf := make([]byte, 100)
	if n, eof, a, err := c.Read(t.Context(), found.Handle, 8, buf); n != 100 || eof || !a.Known || string(buf) != content[8:108] || err != nil {
		t.Errorf("%d bytes %q, end %v, error %v", n, buf, eof, err)
	}
	if n, eof, _, err := c.Read(t.Context(), found.Handle, 7990, buf); n != 10 || !eof || err != nil {
		t.Errorf("%d bytes, end %v, error %v", n, eof, err)
	}
	link, err := c.Lookup(t.Context(), root, "link")
	if err != nil {
		t.Fatal(err)
	}
	if target, err := c.ReadLink(t.Context(), link.Handle); target != "to/somewhere" || err != nil {
		t.Errorf("target %q, error %v", target, err)
	}
	if i, err := c.FSInfo(t.Context(), root); i.MaxRead != 64<<20 || i.PreferredReadDir != 64<<10 || i.Grain.Nsec != 1 || i.Properties != 0x1b || err != nil {
		t.Errorf("%+v, error %v", i, err)
	}
	if err := c.Null(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestListing(t *testing.T) {
	s := nfs3test.Serve(t)
	for _, name := range []string{"a", "b", "\xff\n", strings.Repeat("x", 255)} {
		s.Add(s.Root, name, nfs3.Regular, name)
	}
	c, root := open(t, s)
	for _, b := range []nfs3test.Behavior{{}, {PageEntries: 1}, {NoAttributes: true}, {NoHandles: true}} {
		s.Set(b)
		for _, plus := range []bool{false, true} {
			names, at := "", nfs3.Position{}
			list := c.ReadDir
			if plus {
				list = c.ReadDirPlus
			}
			for eof := false; !eof; {
				p, err := list(t.Context(), root, at, 64<<10, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range p.Entries {
					names += e.Name + " "
					if e.Attr.Known != (plus && !b.NoAttributes) || (e.Handle != "") != (plus && !b.NoHandles) || e.FileID == 0 {
						t.Errorf("%+v, of READDIRPLUS %v", e, plus)
					}
				}
				at, eof = p.Next, p.EOF
			}
			if want := ". .. a b \xff\n " + strings.Repeat("x", 255) + " "; names != want {
				t.Errorf("%+v: %q, want %q", b, names, want)
			}
		}
	}
}

func TestChanging(t *testing.T) {
	s := nfs3test.Serve(t)
	c, root := open(t, s)
	mode, size := uint32(0o600), uint64(3)
	dir, err := c.Mkdir(t.Context(), root, "dir", nfs3.SetAttr{Mode: &mode})
	if err != nil {
		t.Fatal(err)
	}
	file, err := c.Create(t.Context(), dir.Handle, "file", nfs3.SetAttr{Mode: &mode}, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), dir.Handle, "file", nfs3.SetAttr{}, true); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error %v, want ErrExist", err)
	}
	if again, err := c.CreateExclusive(t.Context(), dir.Handle, "file", nfs3.Verifier{1}); err != nil || again.Handle != file.Handle {
		t.Errorf("%+v, error %v", again, err)
	}
	n, stable, before, err := c.Write(t.Context(), file.Handle, 2, []byte("content"), nfs3.Unstable)
	if n != 7 || stable != nfs3.Unstable || err != nil {
		t.Errorf("%d bytes, stable %d, error %v", n, stable, err)
	}
	if v, err := c.Commit(t.Context(), file.Handle, 0, 0); v != before || err != nil {
		t.Errorf("verifier %x, error %v; want %x", v, err, before)
	}
	s.Restart(t)
	if v, err := c.Commit(t.Context(), file.Handle, 0, 0); v == before || err != nil {
		t.Errorf("after a restart: verifier %x, error %v", v, err)
	}
	when := nfs3.Time{Sec: 5, Nsec: 6}
	if err := c.SetAttr(t.Context(), file.Handle, nfs3.SetAttr{Size: &size, UID: &mode, Mtime: &when}, nil); err != nil {
		t.Error(err)
	}
	if a, err := c.GetAttr(t.Context(), file.Handle); a.Size != 3 || a.UID != mode || a.Mtime != when || a.Atime == when || err != nil {
		t.Errorf("%+v, error %v", a, err)
	}
	if err := c.SetAttr(t.Context(), file.Handle, nfs3.SetAttr{}, &when); !errors.Is(err, nfs3.StatusNotSync) {
		t.Errorf("error %v, want StatusNotSync", err)
	}
	steps := []error{
		c.Link(t.Context(), file.Handle, dir.Handle, "linked"),
		c.Rename(t.Context(), dir.Handle, "linked", root, "renamed"),
		c.Remove(t.Context(), root, "renamed"),
		c.Remove(t.Context(), dir.Handle, "file"),
		c.Rmdir(t.Context(), root, "dir"),
	}
	if err := errors.Join(steps...); err != nil {
		t.Error(err)
	}
	if _, err := c.Symlink(t.Context(), root, "link", "target", nfs3.SetAttr{}); err != nil || s.Root.Entry("link").Target != "target" {
		t.Errorf("error %v", err)
	}
	if _, err := c.Mknod(t.Context(), root, "fifo", nfs3.Regular, nfs3.Device{}, nfs3.SetAttr{}); !errors.Is(err, nfs3.StatusBadType) {
		t.Errorf("error %v, want StatusBadType", err)
	}
}

// A refusal is recognized as what it means.
func TestStatuses(t *testing.T) {
	s := nfs3test.Serve(t)
	c, root := open(t, s)
	for status, want := range map[nfs3.Status][]error{
		nfs3.StatusNoEnt:     {fs.ErrNotExist, syscall.ENOENT},
		nfs3.StatusAccess:    {fs.ErrPermission, syscall.EACCES},
		nfs3.StatusPerm:      {fs.ErrPermission, syscall.EPERM},
		nfs3.StatusStale:     {nfs3.ErrStale, syscall.ESTALE},
		nfs3.StatusBadHandle: {nfs3.ErrStale, syscall.ESTALE},
		nfs3.StatusIO:        {syscall.EIO},
		nfs3.StatusNotSupp:   {errors.ErrUnsupported},
		nfs3.Status(12345):   {nfs3.Status(12345)},
	} {
		s.Deny(func(string, *nfs3test.Node) nfs3.Status { return status })
		_, err := c.GetAttr(t.Context(), root)
		for _, want := range append(want, status) {
			if !errors.Is(err, want) {
				t.Errorf("status %d: error %v is not %v", status, err, want)
			}
		}
		if e, ok := errors.AsType[*nfs3.Error](err); !ok || e.Op != "GETATTR" || e.SentAgain {
			t.Errorf("status %d: error %#v", status, err)
		}
		if stale := status == nfs3.StatusStale || status == nfs3.StatusBadHandle; errors.Is(err, fs.ErrNotExist) && status != nfs3.StatusNoEnt || errors.Is(err, nfs3.ErrStale) != stale {
			t.Errorf("status %d: error %v is too much", status, err)
		}
	}
}

// A storm of JUKEBOX ends; if it does not, the call does.
func TestJukebox(t *testing.T) {
	s := nfs3test.Serve(t)
	c, root := open(t, s)
	storm := 5
	s.Deny(func(string, *nfs3test.Node) nfs3.Status {
		if storm--; storm >= 0 {
			return nfs3.StatusJukebox
		}
		return nfs3.StatusOK
	})
	if _, err := c.GetAttr(t.Context(), root); err != nil || s.Count("GETATTR") != 6 {
		t.Errorf("%d calls, error %v; want 6", s.Count("GETATTR"), err)
	}
	s.Do(func() { storm = 1 << 30 })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.GetAttr(ctx, root); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want DeadlineExceeded", err)
	}
	impatient := nfs3.New(rpc.Options{Address: s.Address(), RetryFor: 200 * time.Millisecond})
	defer impatient.Close()
	if _, err := impatient.GetAttr(t.Context(), root); !errors.Is(err, nfs3.StatusJukebox) {
		t.Errorf("error %v, want StatusJukebox", err)
	}
}

// The connection is reset at each call in turn, after it was executed.
func TestResetAtEveryCall(t *testing.T) {
	s := nfs3test.Serve(t)
	s.Add(s.Root, "file", nfs3.Regular, "content")
	c, root := open(t, s)
	for at := range 8 {
		first, _ := s.Counts()
		s.Spoil(func(c *rpctest.Call) rpctest.Fault {
			if c.Number-first == at {
				return rpctest.Reset
			}
			return nil
		})
		f, err := c.Lookup(t.Context(), root, "file")
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 10)
		if n, eof, _, err := c.Read(t.Context(), f.Handle, 0, buf); string(buf[:n]) != "content" || !eof || err != nil {
			t.Errorf("%q, error %v", buf[:n], err)
		}
		_, err = c.Create(t.Context(), root, "new", nfs3.SetAttr{}, true)
		if e, _ := errors.AsType[*nfs3.Error](err); err != nil && (!errors.Is(err, fs.ErrExist) || !e.SentAgain) {
			t.Errorf("CREATE: %v, which does not tell that it was sent again", err)
		}
		err = c.Remove(t.Context(), root, "new")
		if e, _ := errors.AsType[*nfs3.Error](err); err != nil && (!errors.Is(err, fs.ErrNotExist) || !e.SentAgain) {
			t.Errorf("REMOVE: %v, which does not tell that it was sent again", err)
		}
	}
}

// Lies about lengths are errors, and no data.
func TestLies(t *testing.T) {
	s := nfs3test.Serve(t)
	s.Add(s.Root, "file", nfs3.Regular, "content")
	c, root := open(t, s)
	f, err := c.Lookup(t.Context(), root, "file")
	if err != nil {
		t.Fatal(err)
	}
	s.Set(nfs3test.Behavior{LyingReads: true})
	if n, _, _, err := c.Read(t.Context(), f.Handle, 0, make([]byte, 10)); n != 0 || !errors.Is(err, xdr.ErrMalformed) {
		t.Errorf("%d bytes, error %v; want ErrMalformed", n, err)
	}
	s.Set(nfs3test.Behavior{})
	for n := 25; n < 200; n += 4 { // behind the status
		s.Spoil(func(*rpctest.Call) rpctest.Fault { return rpctest.Truncated(n) })
		if p, err := c.ReadDirPlus(t.Context(), root, nfs3.Position{}, 1<<20, nil); !errors.Is(err, xdr.ErrMalformed) || len(p.Entries) > 0 {
			t.Errorf("a listing cut after %d bytes: %d entries, error %v", n, len(p.Entries), err)
		}
		if n, _, _, err := c.Read(t.Context(), f.Handle, 0, make([]byte, 10)); n != 0 || err != nil && !errors.Is(err, xdr.ErrMalformed) {
			if err != nil || n != 7 { // it was not cut
				t.Errorf("%d bytes, error %v", n, err)
			}
		}
	}
}

// Whatever the results of any procedure are, there is no panic, and no more than was asked for.
func FuzzResults(f *testing.F) {
	for _, seed := range [][]byte{make([]byte, 200), {0, 0, 0, 0, 0, 0, 0, 1}, {0, 0, 0, 70}, bytes.Repeat([]byte{0xff}, 64)} {
		f.Add(seed)
	}
	var results atomic.Pointer[[]byte]
	s := rpctest.Serve(f, func(*rpctest.Call) []byte { return *results.Load() })
	o := rpc.Options{Address: s.Address()}
	c, m := nfs3.New(o), nfs3.NewMounter(o)
	f.Cleanup(func() { c.Close(); m.Close() })
	f.Fuzz(func(t *testing.T, with []byte) {
		if len(with) >= 4 && bytes.Equal(with[:4], []byte{0, 0, 0x27, 0x18}) {
			with[3]++ // JUKEBOX is repeated for a minute
		}
		results.Store(&with)
		ctx := context.Background()
		c.GetAttr(ctx, "h")
		c.Lookup(ctx, "h", "name")
		c.Access(ctx, "h", 1)
		c.ReadLink(ctx, "h")
		buf := make([]byte, 16)
		if n, _, _, _ := c.Read(ctx, "h", 0, buf); n > len(buf) {
			t.Fatalf("READ of %d bytes has read %d", len(buf), n)
		}
		if n, _, _, _ := c.Write(ctx, "h", 0, buf, nfs3.Unstable); n > len(buf) {
			t.Fatalf("WRITE of %d bytes has written %d", len(buf), n)
		}
		for _, list := range []func(context.Context, nfs3.Handle, nfs3.Position, uint32, []nfs3.DirEntry) (nfs3.DirPage, error){c.ReadDir, c.ReadDirPlus} {
			if p, err := list(ctx, "h", nfs3.Position{}, 4096, nil); err != nil && len(p.Entries) > 0 {
				t.Fatalf("%d entries, error %v", len(p.Entries), err)
			}
		}
		c.SetAttr(ctx, "h", nfs3.SetAttr{}, nil)
		c.Create(ctx, "h", "name", nfs3.SetAttr{}, true)
		c.Remove(ctx, "h", "name")
		c.Rename(ctx, "h", "name", "h", "other")
		c.Link(ctx, "h", "h", "name")
		c.Commit(ctx, "h", 0, 0)
		c.FSStat(ctx, "h")
		c.FSInfo(ctx, "h")
		c.PathConf(ctx, "h")
		m.Mount(ctx, "/x")
		m.Exports(ctx)
	})
}
