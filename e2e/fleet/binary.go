package fleet

import (
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/testenv"
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

// binary copies the program that it builds, so that another test run cannot replace the program of
// a running process.
var binary = sync.OnceValues(func() (string, error) {
	if program := os.Getenv("BCTL_E2E_PROGRAM"); program != "" {
		return ownCopy(program)
	}
	built, err := testenv.Build("bctl", "./services/bctl")
	if err != nil {
		return "", err
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
