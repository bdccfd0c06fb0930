//go:build linux

package markdown

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Machine is what measurements were made on.
type Machine struct {
	CPU         string `json:"cpu"`
	Cores       int    `json:"cores"`
	MemoryBytes int64  `json:"memory_bytes"`
	Kernel      string `json:"kernel"`
	FileSystem  string `json:"file_system"` // of the work directory
	LoadBefore  string `json:"load_before"` // averages over 1, 5 and 15 minutes
	LoadAfter   string `json:"load_after"`
	GoVersion   string `json:"go"`
}

// DescribeMachine looks at this one; work is the directory that the measurements work in.
func DescribeMachine(work string) Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), GoVersion: runtime.Version(), LoadBefore: LoadAverages()}
	if model := field("/proc/cpuinfo", "model name"); model != "" {
		m.CPU = model
	}
	kib, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64)
	if err == nil {
		m.MemoryBytes = kib << 10
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		// The rest, after the version, names the builder.
		m.Kernel, _, _ = strings.Cut(unix.ByteSliceToString(u.Release[:]), "-")
	}
	var st unix.Statfs_t
	if unix.Statfs(work, &st) == nil {
		m.FileSystem = fileSystemName(int64(st.Type)) //nolint:unconvert // 32 bits elsewhere
	}
	return m
}

func (m *Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %d GiB of memory, Linux %s, %s, bctl built with %s",
		m.CPU, m.Cores, (m.MemoryBytes+1<<29)>>30, m.Kernel, m.FileSystem, m.GoVersion)
}

// field returns the first value of a name in a file of "name: value" lines.
func field(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// LoadAverages are those of the last 1, 5 and 15 minutes.
func LoadAverages() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

func fileSystemName(magic int64) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "XFS"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	}
	return fmt.Sprintf("file system 0x%x", magic)
}
