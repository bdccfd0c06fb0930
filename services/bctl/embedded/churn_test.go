package embedded_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/churn"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
)

// An office is a tree of files as people have them.
type office struct {
	*machine
	random *rand.ChaCha8
	next   int
}

const officeFiles = 2000

func newOffice(t *testing.T) *office { return newOfficeOf(t, 1) }

func newOfficeOf(t *testing.T, seed byte) *office {
	o := &office{machine: newMachine(t), random: rand.NewChaCha8([32]byte{seed})}
	for i := range officeFiles {
		o.put(fmt.Sprintf("home/user%d/docs%d/file%d%s", i%7, i%31, i, endings[i%len(endings)]), o.content(i))
	}
	return o
}

var endings = []string{".txt", ".jpg", ".docx", ".db", ".dat", ".xyz"}

// content returns what a file of one of these endings has.
func (o *office) content(kind int) []byte {
	dense := make([]byte, 600+kind%500)
	_, _ = o.random.Read(dense)
	switch kind % len(endings) {
	case 0:
		return []byte(strings.Repeat(fmt.Sprintf("Dear %d, we write on day %d about the matter.\n", kind, o.next), 20))
	case 1:
		return append([]byte("\xff\xd8\xff\xe0\x00\x10JFIF\x00"), dense...)
	case 2:
		return append([]byte("PK\x03\x04\x14\x00\x06\x00"), dense...)
	case 3:
		return append([]byte("SQLite format 3\x00"), dense...)
	case 4: // records without a known type
		var b bytes.Buffer
		for i := range 100 {
			b.Write([]byte{byte(i), 0, 0, dense[i], 0, 1, 0, 0})
		}
		return b.Bytes()
	}
	return dense // such as a container that is encrypted
}

func (o *office) put(path string, data []byte) {
	o.Helper()
	path = filepath.Join(o.tree, path)
	o.must(os.MkdirAll(filepath.Dir(path), 0o700))
	o.must(os.WriteFile(path, data, 0o600))
}

// files returns the paths of all files that are not encrypted, sorted.
func (o *office) files() (paths []string) {
	o.must(filepath.WalkDir(o.tree, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && !strings.HasSuffix(path, ".xyz") && !strings.HasSuffix(path, ".locked") {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// encrypt encrypts n files, from the one with a number on, and returns how many it left as they
// were. rename, if not nil, returns the new name.
func (o *office) encrypt(from, n int, rename func(i int, path string) string) {
	o.Helper()
	for i, path := range o.files()[from:][:n] {
		data, err := os.ReadFile(path)
		o.must(err)
		_, _ = o.random.Read(data)
		if rename == nil {
			o.must(os.WriteFile(path, data, 0o600))
			continue
		}
		o.must(os.WriteFile(rename(i, path), data, 0o600))
		o.must(os.Remove(path))
	}
}

func (o *office) day() backup.Snapshot {
	o.Helper()
	s, err := o.backup(o.Context())
	o.must(err)
	if !churn.Known(&s) {
		o.Errorf("not all files were judged: %+v", s.Counts)
	}
	return s
}

func (o *office) alarm() *index.Hold {
	o.Helper()
	holds, err := o.Index.(*sqliteindex.Index).Holds(o.Context())
	o.must(err)
	n := slices.IndexFunc(holds, func(h index.Hold) bool { return h.Alarm != backup.SnapshotID{} })
	if n < 0 {
		return nil
	}
	return &holds[n]
}

// Files that are encrypted raise an alarm in the snapshot that has them, whatever their new names
// are. Then nothing of the shard is forgotten until somebody acknowledges the alarm.
func TestEncryptionRaisesAnAlarm(t *testing.T) {
	const some = officeFiles / 20
	for name, rename := range map[string]func(i int, path string) string{
		"in place":       nil,
		"with an ending": func(_ int, path string) string { return path + ".locked" },
		"another ending": func(_ int, path string) string { return strings.TrimSuffix(path, filepath.Ext(path)) + ".locked" },
		"with other names": func(i int, path string) string {
			return filepath.Join(filepath.Dir(path), fmt.Sprintf("%08x.locked", i*7919))
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t)
			first := o.day()
			clean := o.day()
			if a := o.alarm(); a != nil {
				t.Fatalf("alarm %+v of what has not changed", a)
			}
			o.encrypt(100, some, rename)
			s := o.day()
			a := o.alarm()
			if a == nil || a.Alarm != s.ID || s.ChurnScore < 1000 || s.Alarm != a.Reason {
				t.Fatalf("snapshot %+v, alarm %+v", s, a)
			}
			if n := s.Counts.FilesOpaque; n < some*9/10 || n > some {
				t.Errorf("%d files are opaque, of %d", n, some)
			}
			for _, part := range []string{fmt.Sprintf("the last clean snapshot is %d", clean.Number), `"/home/user`, "of user ", "the first at 20"} {
				if !strings.Contains(a.Reason, part) {
					t.Errorf("alarm %q, want %q in it", a.Reason, part)
				}
			}
			x := o.Index.(*sqliteindex.Index)
			if err := x.Forget(t.Context(), first.ID, "tester", ""); !errors.Is(err, index.ErrKept) {
				t.Errorf("a snapshot of the shard can be forgotten: %v", err)
			}
			// The next snapshots, with more of it, do not replace the alarm.
			o.encrypt(0, some, nil)
			if again := o.day(); again.Alarm == "" || o.alarm().ID != a.ID {
				t.Errorf("alarm %+v after %+v", o.alarm(), again)
			}
			o.must(x.RemoveHold(t.Context(), a.ID, "tester", "a test"))
			o.must(x.Forget(t.Context(), first.ID, "tester", ""))
			if quiet := o.day(); quiet.Alarm != "" || o.alarm() != nil {
				t.Errorf("alarm %q of what has not changed", quiet.Alarm)
			}
		})
	}
}

// An attack over several snapshots is found when they have enough files together.
func TestSlowEncryptionRaisesAnAlarm(t *testing.T) {
	o := newOffice(t)
	clean := o.day()
	for day := 1; ; day++ {
		o.encrypt(day*10, 6, nil)
		s := o.day()
		if a := o.alarm(); a != nil {
			if want := fmt.Sprintf("the last clean snapshot is %d", clean.Number); !strings.Contains(a.Reason, want) || day > 5 {
				t.Errorf("day %d: alarm %q, want %q in it", day, a.Reason, want)
			}
			return
		}
		if day > 10 {
			t.Fatalf("no alarm: %+v", s)
		}
	}
}

// A rebuild from the store keeps the counts and an open alarm, also one that no catalog has.
func TestRebuildKeepsAlarms(t *testing.T) {
	o := newOffice(t)
	o.day()
	o.encrypt(100, officeFiles/20, nil)
	s := o.day()
	x := o.emptySQLite()
	if r := o.rebuildInto(x); len(r.Damaged) > 0 {
		t.Fatalf("%+v", r)
	}
	holds, err := x.Holds(t.Context())
	o.must(err)
	got, err := x.Snapshot(t.Context(), s.ID)
	o.must(err)
	if len(holds) != 1 || holds[0].Alarm != s.ID || got.Counts != s.Counts || got.ChurnScore != s.ChurnScore || got.Alarm != s.Alarm {
		t.Errorf("holds %+v, snapshot %+v", holds, got)
	}
}
