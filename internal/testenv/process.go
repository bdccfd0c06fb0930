package testenv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readyWithin = 2 * time.Minute // generous: two cores may be running a dozen race-detector builds
	stopWithin  = time.Minute
	pollEvery   = 20 * time.Millisecond
	logTail     = 16 << 10 // bytes of a process's output that a failed test prints
)

// Command describes how to run a program.
type Command struct {
	Name string   // for messages
	Path string   // the program; looked up in PATH if it contains no slash
	Args []string // without the program's name
	Env  []string // added to the environment of the test
	Dir  string   // working directory; empty: that of the test

	// Ready is polled until it returns nil: TCPReady, HTTPReady or another. Nil: ready once
	// started.
	Ready func(context.Context) error

	// Credential is the user to run the program as; nil: the test's user.
	Credential *syscall.Credential

	// DeathSignal is sent when the test binary dies. The default is SIGKILL.
	DeathSignal syscall.Signal
}

// Process is a program that a test started. Its methods may be called from any goroutine, except
// Restart, which may fail the test and must be called from the test's goroutine.
type Process struct {
	command Command
	logPath string
	fail    func(format string, args ...any)

	mu     sync.Mutex
	latest *execution
}

// execution is one start of a process.
type execution struct {
	pid    int
	exited chan struct{} // closed when the process has been waited for
	err    error         // valid once exited is closed
}

// Start runs the command and returns when it is ready. The process is killed when the test or the
// test binary ends. If the test failed, the end of the process's output is logged.
func Start(t testing.TB, command Command) *Process {
	t.Helper()
	p, err := start(command, filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	p.fail = t.Fatalf
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", command.Name, p.Output())
		}
	})
	return p
}

// start is Start without a test. The caller must Kill or Stop the process.
func start(command Command, logPath string) (*Process, error) {
	if command.DeathSignal == 0 {
		command.DeathSignal = syscall.SIGKILL
	}
	p := &Process{command: command, logPath: logPath}
	if err := p.launch(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Process) launch() error {
	output, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer output.Close()

	cmd := exec.Command(p.command.Path, p.command.Args...)
	cmd.Env = append(os.Environ(), p.command.Env...)
	cmd.Dir = p.command.Dir
	// The output goes to a file, not to a pipe: a pipe needs a goroutine here, and a grandchild
	// that keeps it open would delay Wait.
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true, // so that an interrupt typed at the terminal reaches the test, which then cleans up
		Pdeathsig:  p.command.DeathSignal,
		Credential: p.command.Credential,
	}
	if err := spawn(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.command.Name, err)
	}
	started := &execution{pid: cmd.Process.Pid, exited: make(chan struct{})}
	go func() {
		started.err = cmd.Wait()
		close(started.exited)
	}()
	p.mu.Lock()
	p.latest = started
	p.mu.Unlock()

	if err := p.awaitReady(started.exited); err != nil {
		p.Kill()
		return fmt.Errorf("%s is not ready: %w; it wrote:\n%s", p.command.Name, err, p.Output())
	}
	return nil
}

func (p *Process) awaitReady(exited <-chan struct{}) error {
	if p.command.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	for {
		err := p.command.Ready(ctx)
		select {
		case <-exited:
			return errors.New("it has exited") // even if Ready succeeded: another server may hold the port
		default:
		}
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return errors.New("it has exited")
		case <-ctx.Done():
			return fmt.Errorf("after %v: %w", readyWithin, err)
		case <-time.After(pollEvery):
		}
	}
}

// Restart kills the process if it runs, and runs the same command again, with the same port and
// files. It returns when the process is ready, and fails the test if it does not become ready.
func (p *Process) Restart() {
	p.Kill()
	if err := p.launch(); err != nil {
		p.fail("restart: %v", err)
	}
}

// Kill ends the process and its children with SIGKILL, as abruptly as a power cut, and returns when
// the process has ended.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	_ = p.Wait()
}

// Stop asks the process to end (SIGTERM), and kills it if it has not ended after stopWithin.
func (p *Process) Stop() { p.stop(syscall.SIGTERM) }

func (p *Process) stop(signal syscall.Signal) {
	p.Signal(signal)
	select {
	case <-p.execution().exited:
	case <-time.After(stopWithin):
		p.Kill()
	}
}

// Signal sends a signal to the process and its children. It does nothing if the process has exited.
func (p *Process) Signal(signal syscall.Signal) {
	if p.Running() {
		_ = syscall.Kill(-p.PID(), signal)
	}
}

// Pause stops the process and its children until Resume, and returns when the
// process has stopped.
func (p *Process) Pause() {
	p.Signal(syscall.SIGSTOP)
	for p.Running() {
		// WNOWAIT leaves the exit status of the process to exec.Cmd.
		err := unix.Waitid(unix.P_PID, p.PID(), nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Resume lets a paused process continue.
func (p *Process) Resume() { p.Signal(syscall.SIGCONT) }

// Wait returns when the process has exited, with the error of exec.Cmd.Wait.
func (p *Process) Wait() error {
	execution := p.execution()
	<-execution.exited
	return execution.err
}

// Running reports whether the process has not exited.
func (p *Process) Running() bool {
	select {
	case <-p.execution().exited:
		return false
	default:
		return true
	}
}

// PID returns the process id of the last start.
func (p *Process) PID() int { return p.execution().pid }

func (p *Process) execution() *execution {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.latest
}

// LogFile returns the file with the standard output and error of all starts of the process.
func (p *Process) LogFile() string { return p.logPath }

// Output returns the last logTail bytes of LogFile.
func (p *Process) Output() string {
	file, err := os.Open(p.logPath)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > logTail {
		if _, err := file.Seek(-logTail, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	tail, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	return string(tail)
}

// TCPReady is a Command.Ready that is satisfied when a TCP connection to the address is accepted.
func TCPReady(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// HTTPReady is a Command.Ready that is satisfied when a GET of the URL returns a status 2xx.
func HTTPReady(url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // leaves no goroutine behind
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode/100 != 2 {
			return fmt.Errorf("GET %s: %s", url, response.Status)
		}
		return nil
	}
}
