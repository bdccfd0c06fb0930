package dirstore

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// childDir is the environment variable that marks the process that inChild started, and contains
// its directory.
const childDir = "DIRSTORE_TEST_DIR"

// inChild runs the calling test once more, in a process of its own with the attributes.
func inChild(t *testing.T, dir string, attributes *syscall.SysProcAttr) {
	t.Helper()
	attributes.Pdeathsig = syscall.SIGKILL
	command := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	command.Env = append(os.Environ(), childDir+"="+dir)
	command.SysProcAttr = attributes
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if !bytes.Contains(output, []byte("--- PASS: "+t.Name())) {
		t.Fatalf("the child did not run the test:\n%s", output)
	}
}

// A real full disk: a tmpfs of 1 MiB, in a mount namespace that ends with the child.
func TestFullDisk(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		inChild(t, t.TempDir(), &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		})
		return
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	s := create(t, dir)
	defer s.Close()
	kept := bytes.Repeat([]byte("k"), 400<<10)
	if err := s.Put(t.Context(), "packs/one/kept", kept); err != nil {
		t.Fatal(err)
	}
	err := s.Put(t.Context(), "packs/one/object", make([]byte, 800<<10))
	if !errors.Is(err, store.ErrFull) || !errors.Is(err, backup.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	want := "directory " + dir + ": put packs/one/object: disk full: no space left on device"
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	if got := leftovers(t, dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if _, err := s.Stat(t.Context(), "packs/one/object"); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("the object: %v", err)
	}
	// Nothing was left behind, so an object that fits can be put.
	if err := s.Put(t.Context(), "packs/one/fits", make([]byte, 400<<10)); err != nil {
		t.Error(err)
	}
	if got, err := s.Get(t.Context(), "packs/one/kept", 1<<20); err != nil || !bytes.Equal(got, kept) {
		t.Errorf("what was there: %d bytes, %v", len(got), err)
	}
}

// A directory that belongs to another user.
func TestPermission(t *testing.T) {
	dir := os.Getenv(childDir)
	if dir == "" {
		dir, err := os.MkdirTemp("", "dirstore") //nolint:usetesting // t.TempDir is below a directory that only its user may enter
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		s := create(t, dir)
		if err := s.Put(t.Context(), "packs/one/object", []byte("x")); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if err := os.Chmod(dir, 0o555); err != nil {
			t.Fatal(err)
		}
		attributes := &syscall.SysProcAttr{}
		if os.Getuid() == 0 {
			attributes.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		} else if err := os.Chmod(dir+"/packs", 0); err != nil {
			t.Fatal(err)
		}
		inChild(t, dir, attributes)
		return
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, getErr := s.Get(t.Context(), "packs/one/object", 10)
	for _, err := range []error{getErr, s.Put(t.Context(), "repository", []byte("x")), s.Delete(t.Context(), "packs/one/object")} {
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("got %v", err)
		}
	}
}
