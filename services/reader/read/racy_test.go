package read

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source/treetest"
)

// Whether a file is racy is determined by the clock that stamps it, at the time of reading.
func TestRacyByTheTreesClock(t *testing.T) {
	f := newFixture(t, treetest.Tree{"file": treetest.File("x")})
	changed := f.kernelCtime("file")
	for _, test := range []struct {
		now, behind time.Duration // after the change
		racy        bool
	}{
		{0, 0, true}, {time.Millisecond, 0, false}, {time.Second, time.Second, true}, {time.Second, time.Second - 1, false},
		{-time.Hour, time.Second, true}, {time.Hour, time.Hour, true},
	} {
		faults := f.faulty()
		faults.SetClock(func() (time.Time, time.Duration) { return changed.Add(test.now), test.behind })
		f.read(f.batchOf(""))
		f.commit()
		if got := f.entries()["file"].Flags&backup.Racy != 0; got != test.racy {
			t.Errorf("%v after the change by a clock that may be %v behind: racy %v", test.now, test.behind, got)
		}
	}
}

func (f *fixture) kernelCtime(path string) time.Time {
	f.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(f.dir, path), &st); err != nil {
		f.Fatal(err)
	}
	return time.Unix(st.Ctim.Sec, st.Ctim.Nsec)
}
