package testenv

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const childSetting = "BCTL_TEST_MEMORY_CHILD"

// A process leaves nothing in memory, even if it is killed.
func TestWhatIsInMemoryIsRemoved(t *testing.T) {
	if os.Getenv(childSetting) != "" {
		killInMemory(t)
	}
	child := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	child.Env = append(os.Environ(), childSetting+"=1")
	out, err := child.Output()
	if err == nil {
		t.Fatalf("the child was not killed: %s", out)
	}
	dir := strings.TrimSpace(string(out))
	if filepath.Dir(dir) != memory {
		t.Skipf("%s has too little room: the child had %q", memory, dir)
	}
	for end := time.Now().Add(time.Minute); ; {
		_, err := os.Stat(dir)
		if os.IsNotExist(err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s is still there: %v", dir, err)
		}
		<-time.After(pollEvery)
	}
}

func killInMemory(t *testing.T) {
	t.Helper()
	leave, err := moveToMemory()
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	if err := os.WriteFile(filepath.Join(t.TempDir(), "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdout.WriteString(os.TempDir() + "\n") // the parent fails without it
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	<-t.Context().Done()
}

func TestDiskDirIsNotMoved(t *testing.T) {
	var dir string
	t.Setenv("TMPDIR", t.TempDir())
	t.Run("test", func(t *testing.T) { dir = DiskDir(t) })
	if filepath.Dir(dir) != onDisk {
		t.Errorf("%s is not in %s", dir, onDisk)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s remains: %v, want %v", dir, err, fs.ErrNotExist)
	}
}
