package fleet

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Binary returns the path of a bctl that is built from this source tree, unless
// BCTL_E2E_PROGRAM names another one. Every user of the machine may run it.
func Binary(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs real processes: run without -short")
	}
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// binary builds at a place that outlives the test binary, where the next build has
// nothing to do if nothing changed, and copies from there: a process keeps its
// program even if another test run builds meanwhile.
var binary = sync.OnceValues(func() (string, error) {
	if program := os.Getenv("BCTL_E2E_PROGRAM"); program != "" {
		return ownCopy(program)
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	name, flags := "bctl", []string{"build", "-buildvcs=false"}
	if Race {
		name, flags = "bctl-race", append(flags, "-race")
	}
	directory := filepath.Join(cache, "bctl-tools", "e2e")
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(directory, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	built := filepath.Join(directory, name)
	build := exec.Command("go", append(flags, "-o", built, "./services/bctl")...)
	build.Dir = strings.TrimSpace(string(root))
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build bctl: %w:\n%s", err, output)
	}
	return ownCopy(built)
})

// ownCopy copies a program to where every user may run it.
func ownCopy(program string) (string, error) {
	directory, err := os.MkdirTemp("", "bctl-e2e-")
	if err != nil {
		return "", err
	}
	removeAtExit = directory
	if err := os.Chmod(directory, 0o755); err != nil {
		return "", err
	}
	own := filepath.Join(directory, "bctl")
	return own, copyProgram(program, own)
}

var removeAtExit string

// Cleanup removes what Binary made; TestMain calls it last.
func Cleanup() {
	if removeAtExit != "" {
		_ = os.RemoveAll(removeAtExit) // it is below the system's temporary directory
	}
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}
