package restore

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/treetest"
)

// The flags of inodes, from linux/fs.h.
const flagImmutable, flagAppend = 0x10, 0x20

// setFlags adds flags to those of an inode, as chattr does, until the test ends.
func setFlags(t *testing.T, path string, flags int) {
	t.Helper()
	f, err := os.Open(path)
	check(t, err)
	before, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	check(t, err)
	check(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, before|flags))
	t.Cleanup(func() {
		check(t, unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, before))
		check(t, f.Close())
	})
}

// If an entry cannot be changed because of a flag of its inode, or of its directory's, the problem
// names the flag.
func TestFlagsAreNamed(t *testing.T) {
	needRoot(t)
	f := newFixture(t)
	theirs := f.file("attributes", "same")
	theirs.Mode = 0o600
	f.directory("", theirs, f.file("immutable", "new"), f.file("append", "new"), subdirectory("dir"), subdirectory("locked"))
	f.directory("dir", f.file("in", "new"))
	f.directory("locked", f.file("created", "new"))
	target := t.TempDir()
	treetest.Loop(t, target)
	tree(t, target, "immutable", "append", "dir/in", "locked/gone")
	write(t, filepath.Join(target, "attributes"), "same", backup.Time{Sec: testTime.Sec})
	check(t, os.Chtimes(filepath.Join(target, "attributes"), testTime.Time(), testTime.Time()))
	for path, flags := range map[string]int{
		"immutable": flagImmutable, "attributes": flagImmutable, "append": flagAppend,
		"locked": flagImmutable, "dir": flagAppend,
	} {
		setFlags(t, filepath.Join(target, path), flags)
	}
	_, obs := f.restore(Options{Target: target, Delete: true})
	for path, text := range map[string]string{
		"immutable":      "replace: operation not permitted: it is immutable (chattr -i)",
		"append":         "replace: operation not permitted: it is append-only (chattr -a)",
		"attributes":     "operation not permitted: it is immutable (chattr -i)",
		"dir/in":         "replace: operation not permitted: its directory is append-only (chattr -a)",
		"locked/created": "operation not permitted: its directory is immutable (chattr -i)",
		"locked/gone":    "delete: operation not permitted: its directory is immutable (chattr -i)",
	} {
		obs.wantText(t, path, text)
	}
	wantFile(t, filepath.Join(target, "immutable"), "immutable")
}
