//go:build linux

package treetest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Tmpfs mounts a new file system at dir. It skips the test if that fails. unmount works while files
// are open. If the test does not call unmount, the file system is unmounted at its end.
func Tmpfs(t testing.TB, dir string) (unmount func()) {
	t.Helper()
	return mounted(t, dir, unix.Mount("bctl-test", dir, "tmpfs", 0, "size=1m"))
}

// Bind mounts the directory or file at from at to, which must be of the same kind.
func Bind(t testing.TB, from, to string) (unmount func()) {
	t.Helper()
	return mounted(t, to, unix.Mount(from, to, "", unix.MS_BIND, ""))
}

// Loop mounts an ext4 file system that is in a file, on a device of its own.
func Loop(t testing.TB, dir string) (unmount func()) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	Ext4(t, image)
	return Attach(t, image, dir)
}

// Ext4 creates a small file system in a file.
func Ext4(t testing.TB, image string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 8<<20)); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", image)
}

// Attach mounts the file system in a file at dir. The device is free again after it is unmounted.
func Attach(t testing.TB, image, dir string) (unmount func()) {
	t.Helper()
	run(t, "mount", "-o", "loop", image, dir)
	return mounted(t, dir, nil)
}

// run skips the test if a command fails.
func run(t testing.TB, command ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Skipf("%q: %v: %s", command, err, out)
	}
}

func mounted(t testing.TB, dir string, err error) (unmount func()) {
	t.Helper()
	if err != nil {
		t.Skipf("mount at %s: %v", dir, err)
	}
	unmount = sync.OnceFunc(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	t.Cleanup(unmount)
	return unmount
}
