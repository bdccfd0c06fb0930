package stdin

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/posix"
)

// Streams of one name are one tree, and that of another name is another, wherever they are copied.
func TestRootIsTheName(t *testing.T) {
	root := func(name string) backup.Root {
		t.Helper()
		s, err := Spool(t.Context(), posix.New(posix.Options{}), t.TempDir(), name, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		tree, err := s.Open(t.Context(), URL(name))
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		if _, err := s.Open(t.Context(), URL("other")); !errors.Is(err, backup.ErrNotFound) {
			t.Errorf("another URL: %v", err)
		}
		return tree.Root()
	}
	first, again, odd := root("db.sql"), root("db.sql"), root("db%2Fsql ü")
	if why := first.Differs(again, backup.CompareAll); why != "" || !source.IsLasting(first, again) {
		t.Errorf("the same name: %s, %v", why, first)
	}
	if first.Differs(odd, backup.CompareAll) == "" {
		t.Error("another name is the same tree")
	}
	parsed, err := backup.ParseRoot(odd.String())
	if err != nil || parsed != odd {
		t.Errorf("%v, read as %v: %v", odd, parsed, err)
	}
}

// A stream that breaks after some bytes gives no Source.
func TestBrokenStream(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := io.WriteString(w, "begun"); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if s, err := Spool(t.Context(), posix.New(posix.Options{}), t.TempDir(), "x", r); s != nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, %v", s, err)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "a\x00b", strings.Repeat("x", 256)} {
		if err := CheckName(name); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := CheckName("pg dump: …"); err != nil {
		t.Error(err)
	}
}
