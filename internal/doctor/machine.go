package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/installation"
)

func machineGroup(p *Parts) Group {
	g := Group{Name: "this machine"}
	g.add("machine.kernel", kernel)
	g.add("machine.files", openFiles)
	g.add("machine.memory", func(context.Context) Finding { return memory(p.Role) })
	g.add("machine.time", synchronized)
	return g
}

// Kernel features: openat2, cachestat, RWF_DONTCACHE.
var kernels = []struct {
	major, minor int
	has          string
}{{5, 6, "openat2"}, {6, 5, "cachestat"}, {6, 14, "RWF_DONTCACHE"}}

func kernel(context.Context) Finding {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return skipWith(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	return kernelOf(release)
}

func kernelOf(release string) Finding {
	var major, minor int
	if n, err := fmt.Sscanf(release, "%d.%d", &major, &minor); n < 2 || err != nil {
		return skip("Linux %s", release)
	}
	var has, lacks []string
	for _, k := range kernels {
		if major > k.major || major == k.major && minor >= k.minor {
			has = append(has, k.has)
		} else {
			lacks = append(lacks, fmt.Sprintf("%s (%d.%d)", k.has, k.major, k.minor))
		}
	}
	switch {
	case len(has) == 0:
		return warn("update the kernel", "Linux %s has no %s", release, strings.Join(lacks, ", "))
	case len(lacks) > 0:
		return ok("Linux %s has %s, not %s", release, strings.Join(has, " and "), strings.Join(lacks, " and "))
	}
	return ok("Linux %s has %s", release, strings.Join(has, ", "))
}

// leastFiles is the minimum for a walker, which keeps each directory in progress open; a reader
// keeps each file in progress open.
const leastFiles = 4096

func openFiles(context.Context) Finding {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return skipWith(err)
	}
	if limit.Cur < leastFiles {
		return warn(fmt.Sprintf("raise it to %d or more (LimitNOFILE in the unit, ulimit -n)", leastFiles), "at most %d open files", limit.Cur)
	}
	return ok("at most %d open files", limit.Cur)
}

// leastMemory is the memory that a role needs with default settings. The Kubernetes manifests
// request the same.
var leastMemory = map[installation.Role]uint64{
	installation.Walker: 256 << 20, installation.Reader: 768 << 20, installation.Committer: 256 << 20, installation.Pruner: 512 << 20, installation.Scrubber: 256 << 20, installation.Restorer: 768 << 20, installation.Operator: 64 << 20, "": 768 << 20,
}

func memory(role installation.Role) Finding {
	limit, from := memoryLimit("/proc", "/sys/fs/cgroup")
	if limit == 0 {
		return skip("neither /proc/meminfo nor a control group names a limit")
	}
	text := fmt.Sprintf("%s (%s)", size(limit), from)
	if least := leastMemory[role]; limit < least {
		return warn("raise it to "+size(least)+" or more, or lower worker.batches and worker.tasks", "%s", text)
	}
	return ok("%s", text)
}

// memoryLimit returns the minimum of the machine's memory and the limits of the process's control
// groups.
func memoryLimit(proc, cgroups string) (limit uint64, from string) {
	if data, err := os.ReadFile(filepath.Join(proc, "meminfo")); err == nil {
		for line := range strings.Lines(string(data)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemTotal:" {
				if n, err := strconv.ParseUint(fields[1], 10, 64); err == nil {
					limit, from = n<<10, "the machine's"
				}
			}
		}
	}
	group, err := os.ReadFile(filepath.Join(proc, "self/cgroup"))
	if err != nil {
		return limit, from
	}
	for line := range strings.Lines(string(group)) {
		path, unified := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !unified {
			continue
		}
		for ; ; path = filepath.Dir(path) {
			data, err := os.ReadFile(filepath.Join(cgroups, path, "memory.max"))
			if n, failed := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64); err == nil && failed == nil && (limit == 0 || n < limit) {
				limit, from = n, "the control group's limit"
			}
			if path == "/" || path == "." {
				break
			}
		}
	}
	return limit, from
}

// unsynchronized is the state of a clock that is not synchronized (TIME_ERROR of adjtimex(2)).
const unsynchronized = 5

func synchronized(context.Context) Finding {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return skipWith(err)
	}
	now := time.Now()
	switch {
	case state == unsynchronized || t.Status&unix.STA_UNSYNC != 0:
		return warn("synchronize the clock with NTP (chrony, systemd-timesyncd), unless its virtual machine host does", "it is %s; the clock is not synchronized", now.UTC().Format(time.RFC3339))
	case now.Year() < 2024:
		return fail("set the clock", "it is %s", now.UTC().Format(time.RFC3339))
	}
	return ok("it is %s; the clock is synchronized, to %s", now.UTC().Format(time.RFC3339), duration(time.Duration(t.Esterror)*time.Microsecond))
}
