package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKernel(t *testing.T) {
	t.Parallel()
	for release, want := range map[string]Finding{
		"6.18.44-amd64": {OK, "has openat2, cachestat, RWF_DONTCACHE", ""},
		"6.1.0-40":      {OK, "has openat2, not cachestat (6.5) and RWF_DONTCACHE (6.14)", ""},
		"5.4.0":         {Warning, "has no openat2 (5.6), cachestat (6.5), RWF_DONTCACHE (6.14)", "update the kernel"},
		"strange":       {NotTested, "strange", ""},
	} {
		got := kernelOf(release)
		if got.Status != want.Status || !strings.Contains(got.Seen, want.Seen) || got.Advice != want.Advice {
			t.Errorf("%s: %+v", release, got)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	limit := func() (uint64, string) { return memoryLimit(filepath.Join(dir, "proc"), filepath.Join(dir, "cgroup")) }
	if n, _ := limit(); n != 0 {
		t.Errorf("%d of nothing", n)
	}
	put("proc/meminfo", "MemTotal:       24000 kB\nMemFree:  1 kB\n")
	put("proc/self/cgroup", "1:name=x:/y\n0::/system.slice/bctl.service\n")
	if n, from := limit(); n != 24000<<10 || from != "the machine's" {
		t.Errorf("%d, %s", n, from)
	}
	put("cgroup/system.slice/bctl.service/memory.max", "max\n")
	put("cgroup/system.slice/memory.max", "1048576\n")
	if n, from := limit(); n != 1<<20 || from != "the control group's limit" {
		t.Errorf("%d, %s", n, from)
	}
	put("cgroup/system.slice/bctl.service/memory.max", "524288\n")
	if n, _ := limit(); n != 1<<19 {
		t.Errorf("%d", n)
	}
}

// The checks of this machine run on any machine.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	Run(t.Context(), []Group{machineGroup(&Parts{})}, func(o Outcome) {
		if o.Seen == "" || o.Status == Failure {
			t.Errorf("%+v", o)
		}
	})
}
