//go:build linux

package posix

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountTable lists the mounts that this process sees.
const mountTable = "/proc/self/mountinfo"

// A mounted is one line of the mount table: the directory or file root of the file system with this
// device is mounted at point.
type mounted struct {
	id                  uint64
	device, root, point string
	fileSystem, source  string
	options             []string // of the mount, then of the file system
}

func readMounts() ([]mounted, error) {
	table, err := os.Open(mountTable)
	if err != nil {
		return nil, err
	}
	defer table.Close()
	return parseMounts(table)
}

// parseMounts parses a mount table. It skips malformed lines. The format is described in
// proc_pid_mountinfo(5):
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
func parseMounts(table io.Reader) (mounts []mounted, err error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, rest := strings.Fields(before), strings.Split(after, " ") // a source may be empty
		if !ok || len(fields) < 6 || len(rest) < 3 {
			continue
		}
		id, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil {
			continue
		}
		mounts = append(mounts, mounted{
			id: id, device: fields[2], root: unescape(fields[3]), point: unescape(fields[4]),
			fileSystem: rest[0], source: unescape(rest[1]),
			options: append(strings.Split(fields[5], ","), strings.Split(rest[2], ",")...),
		})
	}
	return mounts, lines.Err()
}

// unescape reverses the kernel's escaping of blanks: \040.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// mountID returns the id of the mount that path is on, or would be on if it existed. It does not
// use statx(2), which returns the id only since Linux 5.8.
func mountID(path string) (uint64, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
		return mountID(filepath.Dir(path))
	}
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.ParseUint(strings.TrimSpace(id), 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/self/fdinfo does not contain the mount of %s", path)
}
