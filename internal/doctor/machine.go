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
	add := func(id string, run func() Result) Check {
		return Check{ID: id, Run: func(context.Context) Result { return run() }}
	}
	return Group{Name: "this machine", Checks: []Check{
		add("machine.kernel", kernel),
		add("machine.files", openFiles),
		add("machine.memory", func() Result { return memory(p.Role) }),
		add("machine.time", synchronised),
	}}
}

// Kernel features: openat2, cachestat, RWF_DONTCACHE.
var kernels = []struct {
	major, minor int
	has          string
}{{5, 6, "openat2"}, {6, 5, "cachestat"}, {6, 14, "RWF_DONTCACHE"}}

func kernel() Result {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return skip("%s", oneLine(err))
	}
	release := unix.ByteSliceToString(name.Release[:])
	return kernelOf(release)
}

func kernelOf(release string) Result {
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

func openFiles() Result {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return skip("%s", oneLine(err))
	}
	if limit.Cur < leastFiles {
		return warn(fmt.Sprintf("raise it to %d or more (LimitNOFILE in the unit, ulimit -n)", leastFiles), "%d files may be open at a time", limit.Cur)
	}
	return ok("%d files may be open at a time", limit.Cur)
}

// leastMemory is the memory that a role needs with default settings, which is also what the
// Kubernetes manifests request.
var leastMemory = map[installation.Role]uint64{
	installation.Walker: 256 << 20, installation.Reader: 768 << 20, installation.Committer: 256 << 20, installation.Operator: 64 << 20, "": 768 << 20,
}

func memory(role installation.Role) Result {
	limit, from := memoryLimit("/proc", "/sys/fs/cgroup")
	if limit == 0 {
		return skip("neither /proc/meminfo nor a control group tells of a limit")
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

// unsynchronised is the state of a clock that is not synchronized (TIME_ERROR of adjtimex(2)).
const unsynchronised = 5

func synchronised() Result {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return skip("%s", oneLine(err))
	}
	now := time.Now()
	switch {
	case state == unsynchronised || t.Status&unix.STA_UNSYNC != 0:
		return warn("let NTP keep the clock (chrony, systemd-timesyncd), unless the machine that this one runs on does", "it is %s; nobody keeps the clock", now.UTC().Format(time.RFC3339))
	case now.Year() < 2024:
		return fail("set the clock", "it is %s", now.UTC().Format(time.RFC3339))
	}
	return ok("it is %s; the clock is kept, to %s", now.UTC().Format(time.RFC3339), duration(time.Duration(t.Esterror)*time.Microsecond))
}
