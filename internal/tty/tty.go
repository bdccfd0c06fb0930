// Package tty reports whether a file is a terminal, and how large it is.
package tty

import (
	"os"

	"golang.org/x/sys/unix"
)

// Size returns the columns and lines of a terminal. ok is false if f is none.
func Size(f *os.File) (columns, lines int, ok bool) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	return int(size.Col), int(size.Row), true
}

// Is reports whether f is a terminal.
func Is(f *os.File) bool {
	_, _, ok := Size(f)
	return ok
}
