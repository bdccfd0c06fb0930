package e2e_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/e2e/manual"
)

const disasterPage = "../docs/disaster-recovery.md"

// A typist types commands of the page, in a directory.
type typist struct {
	*testing.T
	dir  string
	env  []string
	call func(command string) // does what a script stands for that a command of the page runs
}

// blockTimeout ends a block that hangs.
const blockTimeout = 10 * time.Minute

// newTypist returns a typist who has bctl, scripts, and nothing else of bctl.
func newTypist(t *testing.T, program string, scripts map[string]string, env ...string) *typist {
	t.Helper()
	p := &typist{T: t, dir: t.TempDir()}
	bin, home := filepath.Join(t.TempDir(), "bin"), t.TempDir()
	for _, err := range []error{
		os.Mkdir(bin, 0o755), os.Symlink(program, filepath.Join(bin, "bctl")),
		syscall.Mkfifo(filepath.Join(bin, "calls"), 0o600), syscall.Mkfifo(filepath.Join(bin, "answers"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range scripts {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "BCTL_") && !strings.HasPrefix(name, "XDG_") && !strings.HasPrefix(name, "AWS_") && !strings.HasPrefix(name, "PG") {
			p.env = append(p.env, variable)
		}
	}
	p.env = append(p.env, "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+home, "TZ=UTC", "SCRIPTS="+bin, "GORACE=halt_on_error=1 atexit_sleep_ms=0")
	p.env = append(p.env, env...)
	return p
}

// viaTest is a script that has the test do what it stands for.
const viaTest = `#!/bin/sh
echo "$(basename "$0") $*" >"$SCRIPTS/calls"
read -r done <"$SCRIPTS/answers"
`

// run types a text, and returns what the commands print. All of them must succeed.
func (p *typist) run(text string) string {
	p.Helper()
	output, err := p.try(text)
	if err != nil {
		p.Fatalf("%s\n%v:\n%s", text, err, output)
	}
	return output
}

func (p *typist) try(text string) (string, error) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), blockTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", text)
	command.Dir, command.Env = p.dir, p.env
	command.WaitDelay = time.Minute
	calls, answers := p.fifo("calls"), p.fifo("answers")
	defer calls.Close()
	defer answers.Close()
	asked := make(chan string)
	go func() {
		lines := bufio.NewScanner(calls)
		for lines.Scan() {
			asked <- lines.Text()
		}
	}()
	type end struct {
		output []byte
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		output, err := command.CombinedOutput()
		ended <- end{output, err}
	}()
	for {
		select {
		case script := <-asked:
			p.call(script)
			if _, err := fmt.Fprintln(answers, "done"); err != nil {
				p.Fatal(err)
			}
		case e := <-ended:
			return string(e.output), e.err
		}
	}
}

// fifo opens a fifo so that neither end waits for the other.
func (p *typist) fifo(name string) *os.File {
	p.Helper()
	for _, variable := range p.env {
		if bin, is := strings.CutPrefix(variable, "SCRIPTS="); is {
			f, err := os.OpenFile(filepath.Join(bin, name), os.O_RDWR, 0)
			if err != nil {
				p.Fatal(err)
			}
			return f
		}
	}
	panic("a typist has scripts")
}

// follow types the blocks of a section that are of a kind, and returns what they print.
func (p *typist) follow(section, kind string) string {
	p.Helper()
	blocks, err := manual.Blocks(disasterPage)
	if err != nil {
		p.Fatal(err)
	}
	var printed strings.Builder
	typed := 0
	for _, b := range blocks {
		if b.Section == section && b.Kind == kind {
			typed++
			began := time.Now()
			output := p.run(b.Text)
			first, _, _ := strings.Cut(b.Text, "\n")
			p.Logf("%.1f s: %s", time.Since(began).Seconds(), first)
			printed.WriteString(output)
		}
	}
	if typed == 0 {
		p.Fatalf("%s has no block %q in section %q", disasterPage, kind, section)
	}
	typedBlocks.Store(section+": "+kind, true)
	return printed.String()
}

// path is a path in the directory in which commands are typed.
func (p *typist) path(name string) string { return filepath.Join(p.dir, name) }

// remove removes files or directories.
func (p *typist) remove(paths ...string) {
	p.Helper()
	for _, path := range paths {
		if err := os.RemoveAll(path); err != nil {
			p.Fatal(err)
		}
	}
}

// write writes a file, with the directories above it.
func (p *typist) write(path, text string) {
	p.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		p.Fatal(err)
	}
}

// oneMachine is a typist on a machine that backs a tree up to a repository of its own.
type oneMachine struct {
	*typist
	repo, tree string
}

// newOneMachine makes a backup of a tree, in which one file is only in the first snapshot.
func newOneMachine(t *testing.T, scripts map[string]string, env ...string) *oneMachine {
	t.Helper()
	base := t.TempDir()
	m := &oneMachine{repo: filepath.Join(base, "repo"), tree: filepath.Join(base, "tree")}
	m.typist = newTypist(t, fleet.Binary(t), scripts, append([]string{
		"BCTL_REPO=" + m.repo, "TREE=" + m.tree, "IDENTITY=" + filepath.Join(base, "identity.txt"), "BCTL_IDENTITY=" + filepath.Join(base, "identity.txt"),
	}, env...)...)
	generate(t, m.tree, 90, shape{directories: 10, files: 5, meanBytes: 3000})
	m.write(filepath.Join(m.tree, "urgent", "letter"), "to be restored first")
	m.write(filepath.Join(m.tree, "only-old"), "removed after the first backup")
	settle(t)
	m.run(`bctl init; bctl backup "$TREE"; rm "$TREE/only-old"`)
	settle(t)
	m.run(`bctl backup "$TREE"`)
	return m
}
