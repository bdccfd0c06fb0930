package tty_test

import (
	"os"
	"testing"

	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/tty"
)

func TestSize(t *testing.T) {
	screen := testenv.NewTerminal(t, 100, 30)
	if columns, lines, ok := tty.Size(screen.TTY); columns != 100 || lines != 30 || !ok {
		t.Errorf("%d columns, %d lines, %v", columns, lines, ok)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, f := range []*os.File{r, w, null} {
		if tty.Is(f) {
			t.Errorf("%s is a terminal", f.Name())
		}
	}
}
