package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/tty"
)

// A terminal owns the output that a person sees: everything is printed through it, so that the
// progress line always stays at the bottom. It is an io.Writer for stderr.
type terminal struct {
	mu         sync.Mutex
	out, err   io.Writer
	isTerminal bool // stderr is a terminal
	outIs      bool // stdout is a terminal
	width      func() int
	screen     func() (width, height int) // stdout's
	line       string                     // the progress line, as drawn
}

func newTerminal(out, errFile *os.File) *terminal {
	return &terminal{
		out: out, err: errFile, isTerminal: tty.Is(errFile), outIs: tty.Is(out),
		width: func() int {
			if w, _, ok := tty.Size(errFile); ok && w > 0 {
				return w
			}
			return 80
		},
		screen: func() (width, height int) {
			if w, h, ok := tty.Size(out); ok && w > 0 && h > 0 {
				return w, h
			}
			return 80, 24
		},
	}
}

// Write writes whole lines to stderr, above the progress line.
func (t *terminal) Write(p []byte) (int, error) { return t.above(t.err, p) }

func (t *terminal) above(w io.Writer, p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.line == "" {
		return w.Write(p)
	}
	t.show(clearLine)
	n, err := w.Write(p)
	t.show(t.line)
	return n, err
}

type aboveWriter struct {
	t *terminal
	w io.Writer
}

func (w aboveWriter) Write(p []byte) (int, error) { return w.t.above(w.w, p) }

// stdout returns the writer for results.
func (t *terminal) stdout() io.Writer {
	if !t.outIs {
		return t.out
	}
	return aboveWriter{t, t.out}
}

func (t *terminal) println(text string) { fmt.Fprintln(t, text) }

// results is the destination of results. It remembers the first failed write: a result that cannot
// be written is a failure, and not every caller that prints one can return an error.
type results struct {
	to     io.Writer
	mu     sync.Mutex
	failed error
}

func (r *results) Write(p []byte) (int, error) {
	n, err := r.to.Write(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = err
	}
	return n, err
}

// also combines err with the failed write, unless they are the same.
func (r *results) also(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil || errors.Is(err, r.failed) {
		return err
	}
	return errors.Join(err, r.failed)
}

// note prints a message to the user that is not a failure.
func (a *app) note(format string, args ...any) {
	a.term.println(a.term.wrapped("bctl: note: " + fmt.Sprintf(format, args...)))
}

// wrapped breaks the lines of a text so that they fit the terminal, if stderr is one.
func (t *terminal) wrapped(text string) string {
	if !t.isTerminal {
		return text
	}
	return fitted(text, t.width())
}

// fitted breaks the lines of a text that are longer than width, at their spaces; 0 means no limit.
func fitted(text string, width int) string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, wrap(line, width)...)
	}
	return strings.Join(lines, "\n")
}

// clearLine moves to the beginning of the line and erases it.
const clearLine = "\r\x1b[K"

// show writes a part of the progress line. Errors are ignored, because a progress line that cannot
// be shown must not stop a backup.
func (t *terminal) show(text string) { _, _ = io.WriteString(t.err, text) }

// draw replaces the progress line.
func (t *terminal) draw(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = truncate(line, t.width()-1)
	t.show(clearLine + t.line)
}

// clear erases the progress line.
func (t *terminal) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.line != "" {
		t.show(clearLine)
		t.line = ""
	}
}

// truncate shortens s to width characters. If necessary it cuts the middle part, a path.
func truncate(s string, width int) string {
	if utf8.RuneCountInString(s) <= width || width < 2 {
		return s
	}
	runes := []rune(s)
	return string(runes[:width-1]) + "…"
}

// showProgress reports whether a progress line is wanted.
func (a *app) showProgress() bool {
	return a.progress == "always" || a.progress == "auto" && a.term.isTerminal && !a.json
}

// animate draws the result of line several times per second, until stop is called.
func (a *app) animate(line func() string) (stop func()) {
	if !a.showProgress() {
		return func() {}
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			a.term.draw(line())
			select {
			case <-ticker.C:
			case <-quit:
				a.term.clear()
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(quit); <-ended })
}

// display returns a name for display: quoted if it could control the terminal.
func display(name string) string {
	bad := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	if strings.ContainsFunc(name, bad) {
		return strconv.Quote(name)
	}
	return name
}

// plainArgument matches what a shell does not interpret.
var plainArgument = regexp.MustCompile(`^[\pL\pN_./:@%+=,-]+$`)

// argument returns a name for display as the argument of a command: quoted if a shell would
// interpret it.
func argument(name string) string {
	shown := display(name)
	if shown != name || plainArgument.MatchString(name) {
		return shown
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// redraw replaces the whole screen of the terminal without scrolling.
func (t *terminal) redraw(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const home, eraseLine, eraseBelow = "\x1b[H", "\x1b[K", "\x1b[J"
	width, height := t.screen()
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) >= height {
		more := len(lines) - height + 2
		lines = append(lines[:max(height-2, 0)], fmt.Sprintf("… and %d lines more", more))
	}
	var b strings.Builder
	b.WriteString(home)
	for _, line := range lines {
		b.WriteString(truncate(line, width-1) + eraseLine + "\n")
	}
	b.WriteString(eraseBelow)
	_, _ = io.WriteString(t.out, b.String()) // an error means that no reader is left
}
