package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A Disk is a small file system of its own, in memory, to be filled and to be mounted read-only.
type Disk struct{ Dir string }

// NewDisk returns a Disk of this size, which exists until the test ends. It skips the test if this
// user may not mount file systems.
func NewDisk(t testing.TB, sizeBytes int64) Disk {
	t.Helper()
	d := Disk{t.TempDir()}
	err := d.Mount(sizeBytes)
	if errors.Is(err, syscall.EPERM) {
		t.Skipf("user %d may not mount the file system that this test needs", os.Getuid())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Unmount() })
	return d
}

// MayMount reports whether this user may mount file systems.
func MayMount() bool {
	dir, err := os.MkdirTemp("", "bctl-test-")
	if err != nil {
		return false
	}
	defer os.Remove(dir)
	d := Disk{dir}
	if d.Mount(4096) != nil {
		return false
	}
	d.Unmount()
	return true
}

// Mount mounts the file system, which is empty.
func (d Disk) Mount(sizeBytes int64) error {
	return os.NewSyscallError("mount", syscall.Mount("bctl-test", d.Dir, "tmpfs", 0, fmt.Sprintf("size=%d", sizeBytes)))
}

// Unmount removes the file system with its content, even while its files are open.
func (d Disk) Unmount() { _ = syscall.Unmount(d.Dir, syscall.MNT_DETACH) }

// Bind makes the file or directory at one path visible at another path, too, until unmount.
func Bind(from, to string) (unmount func(), err error) {
	err = syscall.Mount(from, to, "", syscall.MS_BIND, "")
	return Disk{to}.Unmount, os.NewSyscallError("mount", err)
}

// SetReadOnly mounts it read-only, or so that it can be written again.
func (d Disk) SetReadOnly(readOnly bool) error {
	flags := uintptr(syscall.MS_REMOUNT)
	if readOnly {
		flags |= syscall.MS_RDONLY
	}
	return os.NewSyscallError("remount", syscall.Mount("bctl-test", d.Dir, "tmpfs", flags, ""))
}

// Fill leaves not a byte of space, until Free.
func (d Disk) Fill() error {
	f, err := os.OpenFile(d.filling(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, os.Getpagesize()))
	}
	if errors.Is(err, syscall.ENOSPC) {
		return nil
	}
	return err
}

// Free gives back the space that Fill took.
func (d Disk) Free() error { return os.Remove(d.filling()) }

func (d Disk) filling() string { return filepath.Join(d.Dir, "filling") }
