package testenv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// Linux machines have a file system in memory at memory. Tests use it if it has memoryBytes left
// (in containers it is often small) and keeps extended attributes.
const (
	memory      = "/dev/shm"
	memoryBytes = 4 << 30
)

// MemoryDir is t.TempDir, but in memory if the machine has enough, where files are made and synced
// in no time. It is for tests that do not depend on the file system.
func MemoryDir(t testing.TB) string {
	t.Helper()
	dir, err := makeInMemory("bctl-test-")
	if err != nil {
		t.Fatal(err)
	}
	if dir == "" {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // the machine's memory is not the test's to check
	return dir
}

// makeInMemory makes a directory in memory. It returns an empty path if the machine has not enough.
func makeInMemory(prefix string) (string, error) {
	if freeBytes(memory) < memoryBytes {
		return "", nil
	}
	dir, err := os.MkdirTemp(memory, prefix)
	if err != nil || xattrsWork(dir) {
		return dir, err
	}
	return "", os.Remove(dir)
}

// freeBytes returns 0 also where there is no such file system.
func freeBytes(path string) uint64 {
	var free syscall.Statfs_t
	if err := syscall.Statfs(path, &free); err != nil {
		return 0
	}
	return free.Bavail * uint64(free.Bsize)
}

// onDisk is where temporary directories are without InMemory.
var onDisk = os.TempDir()

// InMemory are tests whose temporary directories, and those of the programs that they start, are in
// memory, if the machine has enough. On a disk, tests that make and sync thousands of small files
// mostly wait for it. A test that needs a disk uses DiskDir. TestMain is
//
//	func TestMain(m *testing.M) { os.Exit(testenv.InMemory{M: m}.Run()) }
type InMemory struct{ *testing.M }

// Run runs the tests, and returns their exit status.
func (m InMemory) Run() int {
	leave, err := moveToMemory()
	if err != nil {
		fmt.Fprintln(os.Stderr, "move temporary directories into memory:", err)
		return 1
	}
	defer leave()
	return m.M.Run()
}

// moveToMemory makes all temporary directories in memory, until leave, or the end of this process.
func moveToMemory() (leave func(), err error) {
	dir, err := makeInMemory("bctl-tests-")
	if err != nil || dir == "" {
		return func() {}, err
	}
	lifeline, err := removeAfterUs(dir)
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	// Servers of other users have directories here, too.
	err = errors.Join(os.Chmod(dir, 0o777|os.ModeSticky), os.Setenv("TMPDIR", dir))
	return func() { _ = lifeline.Close() }, err
}

// removeAfterUs starts a process that removes a directory when its lifeline is closed or this
// process has ended in any way, but nothing of a file system that is still mounted below it.
func removeAfterUs(dir string) (lifeline io.Closer, err error) {
	janitor := exec.Command("/bin/sh", "-c", `cat >/dev/null; rm -rf --one-file-system -- "$1" 2>/dev/null`, "sh", dir)
	janitor.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the tests is not for it
	lifeline, err = janitor.StdinPipe()
	if err != nil {
		return nil, err
	}
	return lifeline, janitor.Start()
}

// DiskDir is t.TempDir, but never where InMemory has moved it.
func DiskDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(onDisk, "bctl-test-") //nolint:usetesting // t.TempDir may be in memory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
