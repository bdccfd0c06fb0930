//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ticksPerSecond is USER_HZ, which is 100 wherever Linux runs Go.
const ticksPerSecond = 100

// descendantsCPU sums the CPU seconds of all descendants of this process, dead or alive, except its
// own children that have ended.
func descendantsCPU() (user, system float64) {
	type process struct {
		parent       int
		user, system float64
	}
	all := map[int]process{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		parent, user, system, ok := readStat(pid)
		if ok { // and has not ended meanwhile
			all[pid] = process{parent, user, system}
		}
	}
	self := os.Getpid()
	for pid := range all {
		ancestor := all[pid].parent
		for ancestor != self && ancestor > 1 {
			ancestor = all[ancestor].parent
		}
		if ancestor == self {
			user, system = user+all[pid].user, system+all[pid].system
		}
	}
	return user, system
}

// processCPU is the CPU seconds of one process, and of its children that are dead.
func processCPU(pid int) (user, system float64) {
	_, user, system, _ = readStat(pid)
	return user, system
}

func readStat(pid int) (parent int, user, system float64, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, false
	}
	// pid (comm) state ppid …: a comm may have spaces and parentheses.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 15 {
		return 0, 0, 0, false
	}
	var ticks [4]float64 // utime, stime, cutime, cstime
	for i := range ticks {
		ticks[i], _ = strconv.ParseFloat(fields[11+i], 64)
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, (ticks[0] + ticks[2]) / ticksPerSecond, (ticks[1] + ticks[3]) / ticksPerSecond, err == nil
}

// resetPeak sets the peak of a process's resident memory to its present size.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// peakBytes is the most that a process has had resident.
func peakBytes(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmHWM", pid)
}

// dropCaches empties the page cache, and the kernel's of names and inodes. It
// needs root, and a kernel that lets it.
func dropCaches() error { return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0) }

// notAllowed reports whether an error says that this needs more rights than we have.
func notAllowed(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist)
}
