//go:build linux

package target

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

func open(t *testing.T, openat2 bool) (*Root, string) {
	t.Helper()
	path := t.TempDir()
	r, err := Open(Options{Path: path, Salt: []byte("salt")})
	if err != nil {
		t.Fatal(err)
	}
	r.openat2 = openat2
	t.Cleanup(func() { r.Close() })
	return r, path
}

// With and without openat2, directories can be opened; symlinks and other files cannot.
func TestDirIsConfined(t *testing.T) {
	for _, openat2 := range []bool{true, false} {
		r, path := open(t, openat2)
		must(t, os.MkdirAll(filepath.Join(path, "a/b"), 0o755))
		must(t, os.Symlink("/", filepath.Join(path, "a/root")))
		must(t, os.Symlink("b", filepath.Join(path, "a/inner")))
		must(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o644))
		for _, test := range []struct {
			path string
			want error
		}{
			{"", nil}, {"a", nil}, {"a/b", nil},
			{"a/root", unix.ENOTDIR}, {"a/root/etc", backup.ErrOutside}, {"a/inner/x", backup.ErrOutside},
			{"a/../..", backup.ErrOutside}, {"file", unix.ENOTDIR}, {"none", fs.ErrNotExist},
		} {
			d, err := r.Dir(test.path)
			if err == nil {
				d.Release()
			}
			// Which of the two errors a symlink causes depends on its position in the path.
			confined := errors.Is(err, backup.ErrOutside) || errors.Is(err, unix.ENOTDIR)
			if test.want == nil && err != nil || test.want != nil && !errors.Is(err, test.want) && !confined {
				t.Errorf("openat2 %v, %q: %v, want %v", openat2, test.path, err, test.want)
			}
			if test.want != nil && err == nil {
				t.Errorf("openat2 %v, %q opened", openat2, test.path)
			}
		}
	}
}

func TestIdleDirectoriesAreBounded(t *testing.T) {
	r, path := open(t, true)
	for i := range maxIdleDirectories + 50 {
		name := strings.Repeat("d", 1+i%200) + strings.Repeat("e", i/200)
		must(t, os.Mkdir(filepath.Join(path, name), 0o755))
		d, err := r.Dir(name)
		must(t, err)
		again, err := r.Dir(name)
		must(t, err)
		if d != again {
			t.Fatal("opened twice")
		}
		d.Release()
		again.Release()
	}
	if len(r.open) != maxIdleDirectories || r.idle.Len() != maxIdleDirectories {
		t.Errorf("%d open, %d idle", len(r.open), r.idle.Len())
	}
}

// New entries do not keep what they inherit from the target's own directory (a group, an ACL).
func TestInheritedAttributes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("takes root")
	}
	r, path := open(t, true)
	must(t, os.Chown(path, 0, 4242))
	must(t, unix.Chmod(path, 0o2755))
	acl := "\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x02\x00\x07\x00\x01\x00\x00\x00" +
		"\x04\x00\x05\x00\xff\xff\xff\xff" + "\x10\x00\x07\x00\xff\xff\xff\xff" + "\x20\x00\x05\x00\xff\xff\xff\xff"
	if err := unix.Setxattr(path, xattrDefaultACL, []byte(acl), 0); err != nil {
		t.Skip("no ACLs here: ", err)
	}
	made, _, err := r.MakeUsable()
	must(t, err)
	if !made.Existed || !made.Inherits {
		t.Fatalf("%+v", made)
	}
	d, err := r.Dir("")
	must(t, err)
	defer d.Release()
	report := func(op string, err error) { t.Errorf("%s: %v", op, err) }
	e := backup.Entry{Name: "file", Kind: backup.File, Mode: 0o640}
	f, err := d.Create(&e, CreateOptions{Inherits: true})
	must(t, err)
	must(t, f.Finish(&e, 0, report))
	made, err = d.Mkdir("dir", false)
	must(t, err)
	if made.Existed || made.Inherits {
		t.Errorf("%+v", made)
	}
	sub, err := r.Dir("dir")
	must(t, err)
	sub.FinishDirectory(&backup.Entry{Kind: backup.Directory, Mode: 0o750}, false, report)
	sub.Release()
	for name, mode := range map[string]uint32{"file": 0o640, "dir": 0o750} {
		var st unix.Stat_t
		must(t, unix.Lstat(filepath.Join(path, name), &st))
		if st.Gid != 0 || st.Mode&0o7777 != mode {
			t.Errorf("%s: gid %d, mode %o", name, st.Gid, st.Mode&0o7777)
		}
		for _, x := range []string{xattrAccessACL, xattrDefaultACL} {
			if _, err := unix.Lgetxattr(filepath.Join(path, name), x, nil); !errors.Is(err, unix.ENODATA) {
				t.Errorf("%s has %s (%v)", name, x, err)
			}
		}
	}
}

// Files get their mode under any umask. Before that, they never have a right that they do not have
// in the end.
func TestModes(t *testing.T) {
	r, path := open(t, true)
	d, err := r.Dir("")
	must(t, err)
	defer d.Release()
	for _, umask := range []int{0, 0o022, 0o777} {
		before := unix.Umask(umask)
		t.Cleanup(func() { unix.Umask(before) })
		for _, mode := range []uint32{0o644, 0o600, 0o755, 0o666, 0o444, 0o200, 0, 0o4755, 0o2711, 0o1644} {
			for _, place := range []CreateOptions{{}, {Temporary: true}, {Inherits: true}} {
				e := backup.Entry{
					Name: fmt.Sprintf("%o %o %+v", umask, mode, place), Mode: mode,
					UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
				}
				f, err := d.Create(&e, place)
				must(t, err)
				var st unix.Stat_t
				must(t, unix.Fstat(f.fd, &st))
				if more := st.Mode &^ (mode | 0o600) & 0o7777; more != 0 {
					t.Errorf("%s: it has %o at first", e.Name, st.Mode)
				}
				must(t, f.Finish(&e, 0, func(op string, err error) { t.Errorf("%s: %s: %v", e.Name, op, err) }))
				must(t, unix.Lstat(filepath.Join(path, e.Name), &st))
				if st.Mode&0o7777 != mode {
					t.Errorf("%s has %o", e.Name, st.Mode)
				}
			}
		}
	}
}

// Special files get their mode under any umask.
func TestModesOfSpecialFiles(t *testing.T) {
	r, path := open(t, true)
	d, err := r.Dir("")
	must(t, err)
	defer d.Release()
	for _, umask := range []int{0, 0o022, 0o777} {
		before := unix.Umask(umask)
		t.Cleanup(func() { unix.Umask(before) })
		for _, kind := range []backup.Kind{backup.FIFO, backup.Socket, backup.CharDev} {
			if kind == backup.CharDev && os.Geteuid() != 0 {
				continue
			}
			for _, mode := range []uint32{0o644, 0o600, 0} {
				for _, place := range []CreateOptions{{}, {Temporary: true}, {Inherits: true}} {
					e := backup.Entry{
						Name: fmt.Sprintf("%v %o %o %+v", kind, umask, mode, place), Kind: kind, Mode: mode, Rdev: unix.Mkdev(1, 3),
						UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()),
					}
					must(t, d.MakeSpecial(&e, place, func(op string, err error) { t.Errorf("%s: %s: %v", e.Name, op, err) }))
					var st unix.Stat_t
					must(t, unix.Lstat(filepath.Join(path, e.Name), &st))
					if st.Mode&0o7777 != mode {
						t.Errorf("%s has %o", e.Name, st.Mode)
					}
				}
			}
		}
	}
}

// With Keep, a file that was created in the meantime is not replaced.
func TestKeepDoesNotReplace(t *testing.T) {
	r, path := open(t, true)
	d, err := r.Dir("")
	must(t, err)
	defer d.Release()
	e := backup.Entry{Name: "name", Mode: 0o644}
	f, err := d.Create(&e, CreateOptions{Temporary: true, Keep: true})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(path, "name"), []byte("theirs"), 0o644))
	err = f.Finish(&e, 0, func(string, error) {})
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("finish: %v", err)
	}
	entries, err := os.ReadDir(path)
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// With and without listxattrat, existing attributes are compared with the wanted ones, and symlinks
// are not followed.
func TestHasXattrs(t *testing.T) {
	r, path := open(t, true)
	d, err := r.Dir("")
	must(t, err)
	defer d.Release()
	a, b := backup.Xattr{Name: "user.a", Value: []byte("1")}, backup.Xattr{Name: "user.b"}
	long := backup.Xattr{Name: "user." + strings.Repeat("n", 200), Value: []byte("long")}
	for name, xattrs := range map[string][]backup.Xattr{"none": nil, "a": {a}, "ab": {a, b}, "long": {a, long}} {
		must(t, os.WriteFile(filepath.Join(path, name), nil, 0o644))
		for _, x := range xattrs {
			must(t, unix.Setxattr(filepath.Join(path, name), x.Name, x.Value, 0))
		}
	}
	must(t, os.Symlink("ab", filepath.Join(path, "link")))
	for _, test := range []struct {
		name   string
		wanted []backup.Xattr
		others bool
		want   bool
	}{
		{"none", nil, true, true}, {"none", nil, false, true}, {"none", []backup.Xattr{a}, false, false},
		{"a", []backup.Xattr{a}, true, true}, {"a", nil, true, false}, {"a", nil, false, true},
		{"a", []backup.Xattr{{Name: "user.a", Value: []byte("2")}}, false, false},
		{"a", []backup.Xattr{{Name: "user.a", Value: []byte("11")}}, false, false}, {"a", []backup.Xattr{{Name: "user.a"}}, false, false},
		{"ab", []backup.Xattr{b, a}, true, true}, {"ab", []backup.Xattr{a}, true, false}, {"ab", []backup.Xattr{a}, false, true},
		{"long", []backup.Xattr{long, a}, true, true}, {"long", []backup.Xattr{a, b}, false, false},
		{"link", nil, true, true}, {"link", []backup.Xattr{a, b}, false, false}, {"gone", nil, false, false},
	} {
		for _, without := range []bool{false, true} {
			r.noListxattrat.Store(without)
			if got := d.HasXattrs(test.name, test.wanted, test.others); got != test.want {
				t.Errorf("%q, wanted %v, others %v, without listxattrat %v: %v", test.name, test.wanted, test.others, without, got)
			}
		}
	}
}

// Two restores of a snapshot use the same temporary names, so only one may run at a time.
func TestOneRestoreAtATime(t *testing.T) {
	o := Options{Path: filepath.Join(t.TempDir(), "target"), Salt: []byte("snapshot")}
	first, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	want := "another restore to target " + o.Path + " is running" // no snapshot runs
	if _, err := Open(o); !errors.Is(err, backup.ErrRunning) || err.Error() != want {
		t.Errorf("second: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// A time that a file system rounds is right. A time that it replaces is not.
func TestCheckTime(t *testing.T) {
	for _, test := range []struct {
		want, got int64
		ok        bool
	}{
		{16_725_225_600, 16_725_225_600, true}, {16_725_225_601, 16_725_225_600, true}, {16_725_225_600, 15_032_385_535, false},
		{-5_364_662_400, -2_147_483_648, false}, {0, firstSureSeconds, false}, {-1, 0, true}, {1 << 31, 1<<31 - 2, true}, {1 << 31, 1<<31 - 3, false},
	} {
		err := checkTime(backup.Time{Sec: test.want}, func(st *unix.Stat_t) error {
			st.Mtim.Sec = test.got
			return nil
		})
		if errors.Is(err, ErrNotTaken) == test.ok {
			t.Errorf("%d became %d: %v", test.want, test.got, err)
		}
	}
	err := checkTime(backup.Time{Sec: 1_600_000_000}, func(*unix.Stat_t) error { return errors.New("an ordinary time is looked at") })
	if err != nil {
		t.Error(err)
	}
}
