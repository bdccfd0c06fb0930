package testenv

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A Terminal emulates the terminal of a person. A command that has TTY as its stdout writes to it
// as to a terminal.
type Terminal struct {
	TTY *os.File

	master *os.File
	t      testing.TB

	mu     sync.Mutex
	screen []string // the last that was drawn whole
	text   string   // what was printed since
}

// NewTerminal returns a terminal of a size.
func NewTerminal(t testing.TB, columns, lines int) *Terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &Terminal{TTY: tty, master: master, t: t}
	s.Resize(columns, lines)
	ended := make(chan struct{})
	go func() { s.read(); close(ended) }()
	t.Cleanup(func() {
		if err := errors.Join(tty.Close(), master.Close()); err != nil {
			t.Error(err)
		}
		<-ended
	})
	return s
}

// Resize gives the terminal another size.
func (s *Terminal) Resize(columns, lines int) {
	s.t.Helper()
	if err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(lines)}); err != nil {
		s.t.Fatal(err)
	}
}

// read takes what is drawn until the terminal is closed. A screen begins at home, and ends by
// erasing what is below.
func (s *Terminal) read() {
	buffer := make([]byte, 64<<10)
	for {
		n, err := s.master.Read(buffer)
		s.mu.Lock()
		s.text += string(buffer[:n])
		for {
			drawn, rest, whole := strings.Cut(s.text, "\x1b[J")
			if !whole {
				break
			}
			s.text = rest
			_, drawn, _ = strings.Cut(drawn, "\x1b[H")
			drawn = strings.ReplaceAll(strings.ReplaceAll(drawn, "\x1b[K", ""), "\r", "")
			s.screen = strings.Split(strings.TrimSuffix(drawn, "\n"), "\n")
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Screen returns the lines that were drawn last.
func (s *Terminal) Screen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.screen
}

// Text returns what was printed since the last screen.
func (s *Terminal) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

// Type sends keys to the programs that read from the terminal.
func (s *Terminal) Type(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}
