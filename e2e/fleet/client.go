package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/testenv"
)

// commandTimeout ends a command that hangs, with SIGQUIT: its output then says where.
const commandTimeout = 4 * time.Minute

// A Client runs bctl commands.
type Client struct {
	t       testing.TB
	Program string   // what commands run; "": Binary
	Home    string   // of the commands: where the identity is
	Env     []string // added to the environment, which has no settings of bctl otherwise
	// Credential is the user who runs the commands; nil: the user who runs the test.
	Credential *syscall.Credential
	// Memory makes Run measure the memory of commands, for Output.PeakRSS.
	Memory bool
	// Under is a program, with its arguments, that runs the command: strace.
	Under []string
	// Terminal, if not nil, is the stdout of commands.
	Terminal *testenv.Terminal
}

// NewClient returns a Client with a home of its own.
func NewClient(t testing.TB, env ...string) *Client {
	t.Helper()
	Binary(t)
	home := t.TempDir()
	if err := os.Mkdir(filepath.Join(home, "tmp"), 0o777); err != nil {
		t.Fatal(err)
	}
	return &Client{t: t, Home: home, Env: env}
}

// NewRepo returns a Client of a new repository that is all on this machine,
// unless env has other settings.
func NewRepo(t testing.TB, env ...string) *Repo {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "repo")
	r := &Repo{Client: NewClient(t, append(env, "BCTL_REPO="+dir)...), Dir: dir}
	r.Must("init")
	return r
}

// A Repo is a Client of an embedded repository.
type Repo struct {
	*Client
	Dir string
}

// Output is what a command wrote, and how it ended.
type Output struct {
	Args           []string
	Stdout, Stderr string
	Status         int
	PeakRSS        int64 // bytes of memory that the command had at most, with Client.Memory
}

// Run runs a command to its end.
func (c *Client) Run(args ...string) Output {
	c.t.Helper()
	return c.Start(args...).Wait()
}

// Must is Run, and fails the test unless the exit status is 0.
func (c *Client) Must(args ...string) Output {
	c.t.Helper()
	out := c.Run(args...)
	if out.Status != 0 {
		c.t.Fatalf("%s", out)
	}
	return out
}

// Backup is Must for a backup, and returns its summary.
func (c *Client) Backup(args ...string) Summary {
	c.t.Helper()
	return c.Must(append([]string{"backup", "--json"}, args...)...).Summary(c.t)
}

// Restore restores a snapshot into a new directory and returns that.
func (c *Client) Restore(snapshot string, args ...string) string {
	c.t.Helper()
	target := filepath.Join(c.t.TempDir(), "restored")
	c.Must(append([]string{"restore", snapshot, "--target", target}, args...)...)
	return target
}

// Snapshots lists all snapshots, oldest first.
func (c *Client) Snapshots(args ...string) []Snapshot {
	c.t.Helper()
	out := c.Must(append([]string{"snapshot", "ls", "--json"}, args...)...)
	var list []Snapshot
	for line := range strings.Lines(out.Stdout) {
		var s Snapshot
		c.decode(line, &s)
		list = append(list, s)
	}
	return list
}

// Show returns what is known of one snapshot, and its problems.
func (c *Client) Show(snapshot string) (Snapshot, []Problem) {
	c.t.Helper()
	first, rest, _ := strings.Cut(c.Must("snapshot", "show", "--json", snapshot).Stdout, "\n")
	var s Snapshot
	c.decode(first, &s)
	return s, Output{Stdout: rest}.Problems(c.t)
}

func (c *Client) decode(line string, v any) {
	c.t.Helper()
	if err := json.Unmarshal([]byte(line), v); err != nil {
		c.t.Fatalf("%v in %q", err, line)
	}
}

// A Running is a command that may not have ended yet.
type Running struct {
	t              testing.TB
	args           []string
	cmd            *exec.Cmd
	stdout, stderr buffer
	ended          chan struct{}
	peakRSS        int64 // valid once ended is closed
}

// A buffer may be read while the command writes to it.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Start starts a command. It is killed when the test ends before it.
func (c *Client) Start(args ...string) *Running {
	c.t.Helper()
	argv := append([]string{c.program()}, args...)
	argv = append(c.Under[:len(c.Under):len(c.Under)], argv...)
	r := &Running{t: c.t, args: args, cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{})}
	r.cmd.Env = c.environment()
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	if c.Terminal != nil {
		r.cmd.Stdout = c.Terminal.TTY
	}
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.Credential}
	if err := r.cmd.Start(); err != nil {
		c.t.Fatalf("start bctl %v: %v", args, err)
	}
	timeout := time.AfterFunc(commandTimeout, func() { r.Signal(syscall.SIGQUIT) })
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		if c.Memory {
			r.watchMemory(stop)
		}
	}()
	go func() {
		_ = r.cmd.Wait() // the status is in ProcessState
		timeout.Stop()
		close(stop)
		<-stopped
		close(r.ended)
	}()
	c.t.Cleanup(r.Kill)
	return r
}

// watchMemory records the peak memory of the command. The kernel's figure for an ended process is
// of no use: it includes the memory of the test, from which the command was forked.
func (r *Running) watchMemory(stop <-chan struct{}) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	path := fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid)
	for {
		text, err := os.ReadFile(path)
		if err == nil {
			if _, rest, ok := strings.Cut(string(text), "VmHWM:"); ok { // not of one that is ending
				var kilobytes int64
				if _, err := fmt.Sscan(rest, &kilobytes); err == nil {
					r.peakRSS = kilobytes << 10
				}
			}
		}
		select {
		case <-tick.C:
		case <-stop:
			return
		}
	}
}

func (c *Client) program() string {
	if c.Program != "" {
		return c.Program
	}
	return Binary(c.t)
}

// environment is the test's without any settings of bctl.
func (c *Client) environment() []string {
	var env []string
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "BCTL_") && !strings.HasPrefix(name, "XDG_") && !strings.HasPrefix(name, "AWS_") {
			env = append(env, variable)
		}
	}
	// Files that a killed process leaves in this temporary directory are removed with that of the
	// test.
	env = append(env, "HOME="+c.Home, "TMPDIR="+filepath.Join(c.Home, "tmp"), "GORACE=halt_on_error=1 atexit_sleep_ms=0")
	return append(env, c.Env...)
}

// Signal sends a signal to the command and what it started.
func (r *Running) Signal(signal syscall.Signal) {
	if !r.Ended() {
		_ = syscall.Kill(-r.cmd.Process.Pid, signal) // it may end at this moment
	}
}

// Pause stops the command until Resume, and returns when it has stopped.
func (r *Running) Pause() {
	r.Signal(syscall.SIGSTOP)
	for !r.Ended() {
		// WNOWAIT leaves the exit status of the command to exec.Cmd.
		err := unix.Waitid(unix.P_PID, r.cmd.Process.Pid, nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Resume lets a paused command go on.
func (r *Running) Resume() { r.Signal(syscall.SIGCONT) }

// Ended reports whether the command has ended.
func (r *Running) Ended() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// Done is closed when the command has ended.
func (r *Running) Done() <-chan struct{} { return r.ended }

// Stderr is what the command has written to standard error so far.
func (r *Running) Stderr() string { return r.stderr.String() }

// Stdout is what the command has written to standard output so far.
func (r *Running) Stdout() string { return r.stdout.String() }

// Kill ends the command with SIGKILL.
func (r *Running) Kill() {
	r.Signal(syscall.SIGKILL)
	<-r.ended
}

// Wait returns when the command has ended. A race that the detector found fails the test.
func (r *Running) Wait() Output {
	r.t.Helper()
	<-r.ended
	out := Output{Args: r.args, Stdout: r.stdout.String(), Stderr: r.stderr.String(), Status: r.cmd.ProcessState.ExitCode(), PeakRSS: r.peakRSS}
	if strings.Contains(out.Stderr, "DATA RACE") || strings.Contains(out.Stderr, "goroutine 1 [") {
		r.t.Fatalf("%s", out)
	}
	return out
}

// String returns the command with all of its output, for the message of a failed test.
func (o Output) String() string {
	var b strings.Builder
	b.WriteString("bctl " + strings.Join(o.Args, " "))
	b.WriteString("\nexit status " + strconv.Itoa(o.Status))
	b.WriteString("\nstdout: " + o.Stdout + "\nstderr: " + o.Stderr)
	return b.String()
}

// Summary returns the object that backup --json ends with.
func (o Output) Summary(t testing.TB) Summary {
	t.Helper()
	var s Summary
	if !o.last("summary", &s) {
		t.Fatalf("no summary: %s", o)
	}
	return s
}

// Problems returns the error objects that name a path.
func (o Output) Problems(t testing.TB) (list []Problem) {
	t.Helper()
	for line := range strings.Lines(o.Stdout) {
		var p struct {
			Type string `json:"type"`
			Problem
		}
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if p.Type == "error" && p.Op != "" {
			list = append(list, p.Problem)
		}
	}
	return list
}

func (o Output) last(kind string, v any) bool {
	found := false
	for line := range strings.Lines(o.Stdout) {
		var header struct {
			Type string `json:"type"`
		}
		if json.Unmarshal([]byte(line), &header) == nil && header.Type == kind {
			found = json.Unmarshal([]byte(line), v) == nil
		}
	}
	return found
}

// Await waits until a condition holds. If that takes too long, what is the message.
func Await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if err := await(condition); err != nil {
		t.Fatalf("waited %v for %s", awaitTimeout, what)
	}
}

const (
	awaitTimeout = 2 * time.Minute
	awaitEvery   = 5 * time.Millisecond
)

var errTimeout = errors.New("timeout")

func await(condition func() bool) error {
	deadline := time.NewTimer(awaitTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			return errTimeout
		case <-tick.C:
		}
	}
	return nil
}
