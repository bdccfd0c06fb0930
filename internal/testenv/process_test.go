package testenv_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/testenv"
)

func TestProcessKillEndsItsChildrenToo(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "child")
	p := testenv.Start(t, testenv.Command{
		Name:  "shell",
		Path:  "sh",
		Args:  []string{"-c", `sleep 600 & echo $! >"$0.new" && mv "$0.new" "$0"; wait`, file},
		Ready: func(context.Context) error { _, err := os.Stat(file); return err },
	})
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Sscan(string(content), &child); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	waitGone(t, child)
}

func TestProcessStopAndOutput(t *testing.T) {
	t.Parallel()
	ready := filepath.Join(t.TempDir(), "ready")
	p := testenv.Start(t, testenv.Command{
		Name:  "shell",
		Path:  "sh",
		Args:  []string{"-c", `trap 'echo goodbye; exit 7' TERM; : >"$0"; while :; do sleep 0.05; done`, ready},
		Ready: func(context.Context) error { _, err := os.Stat(ready); return err },
	})
	p.Stop()
	var exit *exec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("Wait: %v; want exit status 7", err)
	}
	if !strings.Contains(p.Output(), "goodbye") {
		t.Errorf("Output: %q; want goodbye in it", p.Output())
	}
}

// A process dies with the test binary, even when the binary is killed, and not before: ending the
// thread that called Start must not end the process.
func TestProcessDiesWithItsParent(t *testing.T) {
	if os.Getenv("TESTENV_PARENT") != "" {
		parentOfOrphan(t)
	}
	t.Parallel()
	parent := exec.Command(os.Args[0], "-test.run=^TestProcessDiesWithItsParent$")
	parent.Env = append(os.Environ(), "TESTENV_PARENT=1")
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	for lines := bufio.NewScanner(stdout); child == 0 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "child %d", &child)
	}
	if child == 0 {
		t.Fatal("the parent named no child")
	}
	if err := syscall.Kill(child, 0); err != nil {
		t.Fatalf("the child did not outlive the thread that asked for it: %v", err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	waitGone(t, child)
}

func parentOfOrphan(t *testing.T) {
	ended := make(chan int)
	go func() {
		runtime.LockOSThread() // not unlocked: Go ends the thread with the goroutine
		defer close(ended)
		p := testenv.Start(t, testenv.Command{Name: "sleep", Path: "sleep", Args: []string{"600"}})
		ended <- p.PID()
	}()
	pid := <-ended
	<-ended
	for range 50 { // long enough for the thread to be gone and a signal to arrive
		if err := syscall.Kill(pid, 0); err != nil {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(state), ") Z ") {
		fmt.Printf("child %d\n", pid)
	}
	select {}
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(state), ") Z ") {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("process %d is still there", pid)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
