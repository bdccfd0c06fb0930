package e2e_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv"
)

// One bit of each kind of journal object is flipped on the disk of an S3 server, of the oldest and
// of the newest one. The server returns what is on its disk. Backups go on, a rebuilt index has all
// snapshots, and a repair, a prune and a check end well.
func TestDamagedJournalInS3(t *testing.T) {
	t.Parallel()
	s := testenv.VersityGW(t)
	m := newOneMachine(t, nil, "BCTL_STORE=s3://"+s.Bucket+"/repo", "BCTL_STORE_ENDPOINT=http://"+s.Endpoint,
		"BCTL_STORE_REGION="+s.Region, "BCTL_STORE_ACCESS_KEY="+s.AccessKey, "BCTL_STORE_SECRET_KEY="+s.SecretKey)
	bucket := filepath.Join(s.Dir, s.Bucket, "repo")
	for _, prefix := range []string{store.CommitsPrefix, store.SegmentsPrefix, store.CatalogPrefix, store.IndexPrefix} {
		for _, newest := range []bool{false, true} {
			name := m.journalObject(bucket, prefix, newest)
			t.Logf("%s, newest: %t", name, newest)
			flipBit(t, filepath.Join(bucket, name))
			m.write(filepath.Join(m.tree, "changed"), name)
			m.run(`bctl backup "$TREE"`)
			snapshots := strings.Count(m.run("bctl snapshot ls --json"), "\n")
			rebuilt := filepath.Join(t.TempDir(), "rebuilt")
			// Status 3: an object could not be used, and nothing is lost.
			if out, err := m.try("bctl index rebuild --index " + rebuilt); err != nil && err.Error() != "exit status 3" {
				t.Errorf("%s: bctl index rebuild: %v:\n%s", name, err, out)
			}
			if n := strings.Count(m.run("bctl snapshot ls --json --index "+rebuilt), "\n"); n != snapshots {
				t.Errorf("%s: a rebuilt index has %d snapshots of %d", name, n, snapshots)
			}
			for _, command := range []string{"bctl repair --yes", "bctl prune", "bctl check --read-data"} {
				if out, err := m.try(command); err != nil {
					t.Errorf("%s: %s: %v:\n%s", name, command, err, out)
				}
			}
		}
	}
}

// journalObject returns the name of the oldest or the newest object of a kind.
func (m *oneMachine) journalObject(bucket, prefix string, newest bool) string {
	m.Helper()
	var names []string
	m.must(filepath.WalkDir(filepath.Join(bucket, prefix), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, path)
		}
		return err
	}))
	age := func(path string) int64 {
		info, err := os.Stat(path)
		m.must(err)
		return info.ModTime().UnixNano()
	}
	slices.SortFunc(names, func(a, b string) int { return int(age(a) - age(b)) })
	at := 0
	if newest {
		at = len(names) - 1
	}
	name, err := filepath.Rel(bucket, names[at])
	m.must(err)
	return name
}

// flipBit flips a bit in the middle of a file, and keeps its time.
func flipBit(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		data[len(data)/2] ^= 1
		var file *os.File
		if file, err = os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			_, err = file.WriteAt(data, 0)
			_ = file.Close()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (p *typist) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}
