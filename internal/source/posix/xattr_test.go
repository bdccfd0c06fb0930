//go:build linux

package posix_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/treetest"
)

// More attributes than can be stored per entry are an error that names the limit, and nothing else.
func TestTooManyXattrs(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("takes root: a file system in memory has any number of attributes of root")
	}
	dir := t.TempDir()
	if err := unix.Mount("bctl-test", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("cannot mount: ", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	treetest.Make(t, dir, treetest.Tree{"file": treetest.File("x")})
	const each = 60 << 10
	for n := range source.MaxXattrBytes/each + 1 {
		name := "trusted." + string(rune('a'+n))
		if err := unix.Setxattr(filepath.Join(dir, "file"), name, bytes.Repeat([]byte("x"), each), 0); err != nil {
			t.Skipf("the file system does not take %d attributes: %v", n+1, err)
		}
	}
	d, err := openTree(t, dir).OpenDirectory(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	found, err := d.Xattrs(t.Context(), "file", 0)
	if len(found) > 0 || !errors.Is(err, unix.E2BIG) || !strings.HasSuffix(err.Error(), "more than 1048576 bytes of extended attributes, which is the most that bctl stores of an entry") {
		t.Errorf("%d attributes, %v", len(found), err)
	}
}
