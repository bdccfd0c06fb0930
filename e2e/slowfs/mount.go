//go:build linux

package slowfs

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Mount mounts a slow view of dir until the test ends. It skips the test if this machine cannot
// mount it.
func Mount(t testing.TB, dir string, o Options) *FS {
	t.Helper()
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("slowfs needs FUSE: %v", err)
	}
	if err := device.Close(); err != nil {
		t.Fatal(err)
	}
	mountpoint, err := os.MkdirTemp("", "bctl-slowfs-") //nolint:usetesting // TempDir would remove the content of dir if the unmount fails
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(mountpoint, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := Start(dir, mountpoint, o)
	if errors.Is(err, unix.EPERM) {
		_ = os.Remove(mountpoint) // the next line gives the reason
		t.Skipf("slowfs needs the right to mount: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.Close(), os.Remove(mountpoint)); err != nil {
			t.Error(err)
		}
	})
	return f
}
