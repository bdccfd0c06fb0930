package doctor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/doctor"
	"github.com/bctl/bctl/services/bctl/open"
)

// examineSource returns the outcomes of one source, without its path in their ids.
func examineSource(t testing.TB, dir string) outcomes {
	t.Helper()
	return examineSourceWith(t, settings{}, dir)
}

func examineSourceWith(t testing.TB, s settings, dir string) outcomes {
	t.Helper()
	p := open.Doctor(s.load(t))
	p.Sources = []string{dir}
	found := outcomes{}
	for _, g := range doctor.Groups(&p) {
		if g.Name != "source "+dir {
			continue
		}
		doctor.Run(t.Context(), []doctor.Group{g}, func(o doctor.Outcome) {
			t.Logf("%s %s: %s -> %s", o.Status, o.ID, o.Seen, o.Advice)
			found[o.ID[:len(o.ID)-len(" "+dir)]] = o
		})
	}
	return found
}

func TestSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for n := range 1200 {
		path := filepath.Join(dir, fmt.Sprintf("d%02d", n%40), fmt.Sprintf("f%04d", n))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first := filepath.Join(dir, "d00", "f0000")
	before, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	found := examineSource(t, dir)
	found.onlyFails(t)
	found.want(t, "source.walk", doctor.OK, "1000 files examined")
	found.want(t, "source.latency", doctor.OK, "(median)")
	found.want(t, "source.page_cache", doctor.OK)
	found.want(t, "source.traces", doctor.OK, "O_NOATIME is allowed")
	found.want(t, "source.attributes", doctor.OK)
	found.want(t, "source.change_times", doctor.OK)
	found.want(t, "source.clock", doctor.OK, "the clocks agree")
	found.want(t, "source.mount", doctor.OK, "no mount point")
	inFleet := examineSourceWith(t, settings{"BCTL_NATS": "nats://localhost"}, dir)
	inFleet.want(t, "source.mount", doctor.Warning, "no mount point: a directory of ", "mount the filer here")
	inFleet.want(t, "source.walk", doctor.OK, "1000 files examined")
	if after, err := os.Stat(first); err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("%v, %v", after, err)
	}
	if os.Getuid() == 0 {
		found.want(t, "source.access", doctor.OK, "user 0")
	}
}

func TestSourceBroken(t *testing.T) {
	t.Parallel()
	found := examineSource(t, filepath.Join(t.TempDir(), "nothing"))
	found.want(t, "source.mount", doctor.Failure, "no such file")
	found.want(t, "source.walk", doctor.NotTested)
	found = examineSource(t, t.TempDir())
	found.want(t, "source.walk", doctor.Warning, "it is empty", "check that it is mounted")
	found.want(t, "source.latency", doctor.NotTested)
	found.want(t, "source.clock", doctor.NotTested)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	examineSource(t, file).want(t, "source.walk", doctor.Failure, "not a directory")
	old := t.TempDir()
	if err := os.WriteFile(filepath.Join(old, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(old, "f"), time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	// A file's times can be set to any value, but its ctime cannot.
	examineSource(t, old).want(t, "source.clock", doctor.OK)
	examineSource(t, "/proc/self/fdinfo").want(t, "source.mount", doctor.OK, "proc")
}
