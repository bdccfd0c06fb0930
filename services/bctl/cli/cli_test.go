package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/internal/restore"
)

func TestExitStatus(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("any"), 1},
		{fmt.Errorf("x: %w", usage("wrong")), 2},
		{errIncomplete, 3},
		{errors.Join(nil, errIncomplete), 3},
		{errors.Join(errIncomplete, errors.New("any")), 1},
		{fmt.Errorf("x: %w", backup.ErrNoRepository), 10},
		{fmt.Errorf("x: %w", backup.ErrRunning), 11},
		{fmt.Errorf("x: %w", backup.ErrWrongKey), 12},
		{errors.Join(process.ErrInterrupted, context.Canceled), 130},
	} {
		if got := exitStatus(test.err); got != test.want {
			t.Errorf("%v: status %d, want %d", test.err, got, test.want)
		}
	}
}

// After a disk has failed on the last write, repeating the command is not enough.
func TestAdvice(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{&restore.SyncError{Err: syscall.EIO}, "repair the disk or free space there, then run the command again with --overwrite always"},
		{&restore.SyncError{Err: syscall.ENOSPC}, "repair the disk or free space there, then run the command again with --overwrite always"},
		{fmt.Errorf("x: %w", syscall.ENOSPC), "free space there, then run the command again"},
		{fmt.Errorf("x: %w", syscall.EIO), ""}, // unless the file size is limited: TestScripts/init
	} {
		if got := strings.TrimPrefix(advice(test.err), "; "); got != test.want {
			t.Errorf("%v: %q, want %q", test.err, got, test.want)
		}
	}
}

func TestProgressLine(t *testing.T) {
	now := time.Unix(0, 0)
	p := newTracker()
	p.expect(backup.SnapshotID{}, 1000, 1<<30) // of the last snapshot
	p.started, p.now = now, func() time.Time { return now }
	p.add(backup.Progress{FilesFound: 500, BytesFound: 512 << 20, FilesDone: 250, BytesDone: 256 << 20, Path: "home/a\x1b[31m"})
	now = now.Add(10 * time.Second)
	want := `0:10  250 of 1,000 files  256 MiB of 1.0 GiB  26 MiB/s  0:30 left  "home/a\x1b[31m"`
	if got := p.line(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	// There is more than last time, so the count found replaces the expected one.
	p.add(backup.Progress{FilesFound: 1500, BytesFound: 2 << 30, Errors: 2, Path: "b"})
	if got := p.line(); !strings.Contains(got, "of 2,000 files  256 MiB of 2.5 GiB") || !strings.Contains(got, "2 errors  b") {
		t.Error(got)
	}
}

// Log lines appear above the progress line, which is complete again after each.
func TestLogAndProgressStayInStep(t *testing.T) {
	var out bytes.Buffer
	term := &terminal{out: &out, err: &out, width: func() int { return 12 }}
	term.draw("progress line")
	term.println("log")
	term.draw("next")
	term.clear()
	term.println("end")
	const erase = "\r\x1b[K"
	if got, want := out.String(), erase+"progress l…"+erase+"log\nprogress l…"+erase+"next"+erase+"end\n"; got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestDisplay(t *testing.T) {
	for name, want := range map[string]string{"plain ü.txt": "plain ü.txt", "a\nb": `"a\nb"`, "\xff": `"\xff"`, "\x1b]0;x\a": `"\x1b]0;x\a"`} {
		if got := display(name); got != want {
			t.Errorf("%q is shown as %s, want %s", name, got, want)
		}
	}
}

func TestModeString(t *testing.T) {
	for _, test := range []struct {
		kind backup.Kind
		mode uint32
		want string
	}{
		{backup.File, 0o644, "-rw-r--r--"}, {backup.Directory, 0o1777, "drwxrwxrwt"}, {backup.File, 0o6755, "-rwsr-sr-x"},
		{backup.File, 0o7000, "---S--S--T"}, {backup.Symlink, 0o777, "lrwxrwxrwx"}, {backup.BlockDev, 0o660, "brw-rw----"},
	} {
		if got := modeString(&backup.Entry{Kind: test.kind, Mode: test.mode}); got != test.want {
			t.Errorf("%v %o: %s, want %s", test.kind, test.mode, got, test.want)
		}
	}
}

// The log is text where one person works on one machine. A pruner of a fleet has no NATS.
func TestLogFormat(t *testing.T) {
	for _, test := range []struct{ index, nats, format, want string }{
		{"sqlite:/r/index.db", "", "auto", "text"},
		{"sqlite:/r/index.db", "", "json", "json"},
		{"postgres://db/bctl", "nats://n", "auto", "auto"},
		{"postgres://db/bctl", "", "auto", "auto"},
		{"", "nats://n", "auto", "auto"},
	} {
		a := &app{cfg: &config.Config{Index: config.Index{URL: test.index}, NATS: config.NATS{URL: test.nats}, Log: config.Log{Format: test.format}}}
		if got := a.logFormat(); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}

// A command in a message can be copied into a shell.
func TestArguments(t *testing.T) {
	for name, want := range map[string]string{
		"/export/home": "/export/home", "/tmp/with space": "'/tmp/with space'", "it's": `'it'\''s'`, "a;b": "'a;b'", "$HOME": "'$HOME'",
		"größe": "größe", "": "''", "~x": "'~x'", "*": "'*'",
	} {
		if got := argument(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}
