package cli

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
)

// noteUnmappedIDs prints a note if this process cannot distinguish all owners: a user namespace
// shows every unmapped id as the overflow id.
func (a *app) noteUnmappedIDs() {
	for _, ids := range []struct{ of, path, overflow string }{
		{"user", "/proc/self/uid_map", "/proc/sys/kernel/overflowuid"},
		{"group", "/proc/self/gid_map", "/proc/sys/kernel/overflowgid"},
	} {
		table, err := os.ReadFile(ids.path)
		if errors.Is(err, fs.ErrNotExist) { // a kernel without user namespaces
			continue
		}
		if err == nil && mapsAllIDs(string(table)) {
			continue
		}
		overflow, err := os.ReadFile(ids.overflow)
		if err != nil {
			overflow = []byte("65534")
		}
		a.note("this user namespace does not map all %s ids; files of unmapped %[1]ss are stored as those of %[1]s %s",
			ids.of, strings.TrimSpace(string(overflow)))
	}
}

// mapsAllIDs reports whether a table, as described in user_namespaces(7), maps all ids. Its ranges
// do not overlap.
func mapsAllIDs(table string) bool {
	var mapped uint64
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return false
		}
		n, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			return false
		}
		mapped += n
	}
	return mapped >= math.MaxUint32 // 2^32 - 1 is not a valid id
}
