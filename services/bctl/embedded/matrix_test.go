package embedded_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/check"
	"github.com/bctl/bctl/internal/source/sourcetest/faultsource"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// The behaviour of a backup when a call of the source fails. A row is a call, usually for a file or
// a directory; a column is an error. Each cell is tried with a fault that occurs once and with a
// permanent one, in the first snapshot and in a later one, with the real services, an index, a
// store and a queue.
//
//	good   the snapshot equals the tree: the call was repeated
//	kept   a problem, with status 3. The snapshot has the last good copy, flagged;
//	       if there is none, an entry without the data that could not be read
//	gone   left out and counted as vanished, without a problem: the root and the
//	       mounts were checked before that was believed
//	again  the backup ends with an error, and nothing is committed
//	fail   the snapshot fails, with a reason
//
// good/kept is good with a fault that occurs once, and kept with a permanent one. In each cell,
// everything else in the tree is in a committed snapshot, and without the fault the next snapshot
// equals the tree again: all kept and all vanished entries have recovered.
const matrix = `
                             ENOENT    ENOTDIR   ELOOP  EACCES  ENAMETOOLONG  EIO    ESTALE      ETIMEDOUT  ENOTCONN  EMFILE  ENOMEM  short
open root                    fail      fail      fail   fail    fail          again  again       again      again     again   again   -
open root, by the reader     fail      fail      fail   fail    fail          again  again       again      again     again   again   -
resolve                      fail      fail      fail   fail    again         again  again       again      again     again   again   -
check                        again     again     again  again   again         again  again       again      again     again   again   -
check, by the reader         again     again     again  again   again         again  again       again      again     again   again   -
open directory, the root     fail      fail      fail   fail    fail          again  good/again  again      again     again   again   -
list, the root               fail      fail      fail   fail    fail          again  good/again  again      again     again   again   -
open directory               gone      gone      gone   kept    kept          kept   good/kept   kept       kept      again   again   -
stat directory               gone      gone      kept   kept    kept          kept   good/kept   kept       kept      again   again   -
list                         gone      gone      kept   kept    kept          kept   good/kept   kept       kept      again   again   -
list, the rest               gone      gone      kept   kept    kept          kept   good/kept   kept       kept      again   again   -
directory xattrs             kept      kept      kept   kept    kept          kept   kept        kept       kept      again   again   -
stat entry                   gone      kept      kept   kept    kept          kept   kept        kept       kept      again   again   -
read link                    gone      kept      kept   kept    kept          kept   kept        kept       kept      again   again   -
entry xattrs                 gone      gone      kept   kept    kept          kept   kept        kept       kept      again   again   -
open directory, by the reader gone     gone      gone   kept    kept          kept   good/kept   kept       kept      again   again   -
open file                    gone      gone      gone   kept    kept          kept   good/kept   kept       kept      again   again   -
stat file                    good/kept good/kept kept   kept    kept          kept   good/kept   kept       kept      again   again   -
stat file, once it was read  good/kept good/kept kept   kept    kept          kept   good/kept   kept       kept      again   again   -
extent                       good/kept good/kept kept   kept    kept          kept   good/kept   kept       kept      again   again   -
read                         good/kept good/kept kept   kept    kept          kept   good/kept   kept       kept      again   again   good/kept
read, further on             good/kept good/kept kept   kept    kept          kept   good/kept   kept       kept      again   again   good/kept
file xattrs                  good/kept good/kept kept   kept    kept          kept   good/kept   kept       kept      again   again   -
`

var errnos = map[string]syscall.Errno{
	"ENOENT": syscall.ENOENT, "ENOTDIR": syscall.ENOTDIR, "ELOOP": syscall.ELOOP, "EACCES": syscall.EACCES, "ENAMETOOLONG": syscall.ENAMETOOLONG,
	"EIO": syscall.EIO, "ESTALE": syscall.ESTALE, "ETIMEDOUT": syscall.ETIMEDOUT, "ENOTCONN": syscall.ENOTCONN, "EMFILE": syscall.EMFILE, "ENOMEM": syscall.ENOMEM,
}

// A row is a failing call and its effects.
type row struct {
	fault faultsource.Fault // Call, Path, After and From
	// kept is the form of the path's entry if the fault is permanent: with a previous snapshot, and
	// without.
	kept keptForm
	// below means that everything below the path is affected too.
	below bool
}

// A keptForm is the way in which the last good copy is kept.
type keptForm int

const (
	notKept    keptForm = iota // for rows without such a cell
	wholeEntry                 // the whole old entry; without one, the path is left out
	content                    // the file with its old content; without it, no content
	xattrs                     // the present entry with its old xattrs
	directory                  // everything below as before; without that, nothing is known
)

const (
	aDirectory, aFile, aLink = "dir", "dir/file", "dir/link"
	further                  = 150 << 10 // in a file of fileBytes; the first read is shorter
	fileBytes                = 200 << 10
)

var rows = map[string]row{
	"open root":                     {fault: faultsource.Fault{Call: faultsource.OpenRoot}},
	"open root, by the reader":      {fault: faultsource.Fault{Call: faultsource.OpenRoot, After: 1}},
	"resolve":                       {fault: faultsource.Fault{Call: faultsource.Resolve}},
	"check":                         {fault: faultsource.Fault{Call: faultsource.Check}},
	"check, by the reader":          {fault: faultsource.Fault{Call: faultsource.Check, After: 1}},
	"open directory, the root":      {fault: faultsource.Fault{Call: faultsource.OpenDirectory}},
	"list, the root":                {fault: faultsource.Fault{Call: faultsource.List}},
	"open directory":                {faultsource.Fault{Call: faultsource.OpenDirectory, Path: aDirectory}, directory, true},
	"stat directory":                {faultsource.Fault{Call: faultsource.StatDirectory, Path: aDirectory}, directory, true},
	"list":                          {faultsource.Fault{Call: faultsource.List, Path: aDirectory}, directory, true},
	"list, the rest":                {faultsource.Fault{Call: faultsource.List, Path: aDirectory, After: 1}, directory, true},
	"directory xattrs":              {faultsource.Fault{Call: faultsource.DirectoryXattrs, Path: aDirectory}, xattrs, false},
	"stat entry":                    {faultsource.Fault{Call: faultsource.StatEntry, Path: aFile}, wholeEntry, false},
	"read link":                     {faultsource.Fault{Call: faultsource.ReadLink, Path: aLink}, wholeEntry, false},
	"entry xattrs":                  {faultsource.Fault{Call: faultsource.EntryXattrs, Path: aLink}, xattrs, false},
	"open directory, by the reader": {faultsource.Fault{Call: faultsource.OpenDirectory, Path: aDirectory, After: 1}, content, false},
	"open file":                     {faultsource.Fault{Call: faultsource.OpenFile, Path: aFile}, content, false},
	"stat file":                     {faultsource.Fault{Call: faultsource.StatFile, Path: aFile}, content, false},
	"stat file, once it was read":   {faultsource.Fault{Call: faultsource.StatFile, Path: aFile, After: 1}, content, false},
	"extent":                        {faultsource.Fault{Call: faultsource.Extent, Path: aFile}, content, false},
	"read":                          {faultsource.Fault{Call: faultsource.Read, Path: aFile}, content, false},
	"read, further on":              {faultsource.Fault{Call: faultsource.Read, Path: aFile, From: further}, content, false},
	"file xattrs":                   {faultsource.Fault{Call: faultsource.FileXattrs, Path: aFile}, xattrs, false},
}

// A cell is one fault and its expected result.
type cell struct {
	row
	column string
	want   string
	once   bool
	later  bool // there is an earlier good snapshot
}

func (c *cell) String() string {
	times, when := "always", "first"
	if c.once {
		times = "once"
	}
	if c.later {
		when = "later"
	}
	return fmt.Sprintf("%s, %s, in the %s snapshot", c.column, times, when)
}

// inject activates the fault.
func (c *cell) inject(s *faultsource.Source) *faultsource.Injected {
	f := c.fault
	if c.once {
		f.Times = 1
	}
	if c.column == "short" {
		f.Short = true
	} else {
		f.Err = faultsource.Posix(f.Call, errnos[c.column])
	}
	return s.Inject(f)
}

// cells returns the cells of each row: the first column of each result, and all columns in the
// target "long".
func cells(t *testing.T) map[string][]cell {
	lines := strings.Split(strings.Trim(matrix, "\n"), "\n")
	columns := strings.Fields(lines[0])
	all := map[string][]cell{}
	for _, line := range lines[1:] {
		words := strings.Fields(line)
		name, wants := strings.Join(words[:len(words)-len(columns)], " "), words[len(words)-len(columns):]
		r, ok := rows[name]
		if !ok {
			t.Fatalf("what is %q?", name)
		}
		tried := map[string]bool{}
		for i, column := range columns {
			if wants[i] == "-" || tried[wants[i]] && column != "short" && !testtarget.Runs(testtarget.Exhaustive) {
				continue
			}
			tried[wants[i]] = true
			once, always, two := strings.Cut(wants[i], "/")
			if !two {
				always = once
			}
			for _, later := range []bool{false, true} {
				all[name] = append(all[name], cell{r, column, once, true, later}, cell{r, column, always, false, later})
			}
		}
	}
	if len(all) != len(rows) {
		t.Fatalf("%d rows in the table, %d calls", len(all), len(rows))
	}
	return all
}

func TestMatrixOfFaults(t *testing.T) {
	for name, cells := range cells(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newFaultyMachine(t)
			for _, c := range cells {
				m.try(&c)
			}
		})
	}
}

// try tests one cell, with a shard of its own.
func (m *faultyMachine) try(c *cell) {
	m.Helper()
	m.newShard(c.fault.Call == faultsource.Resolve)
	defer func() {
		if m.Failed() {
			m.Fatalf("%s: want %s", c, c.want)
		}
	}()
	var last state
	if c.later {
		m.wantTree(m.backup())
		last = m.tree()
		m.change()
	}
	now := m.tree()
	tries := 2 // permanent faults stay
	if c.once {
		tries = 1
	}
	for range tries {
		fault := c.inject(m.faults)
		snap, err := m.backup()
		if fault.Happened() == 0 {
			m.Fatalf("%s: it does not happen", c)
		}
		fault.Lift()
		switch c.want {
		case "again":
			if err == nil {
				m.Errorf("%s: %s", snap.State, snap.Reason)
			}
		case "fail":
			if err != nil || snap.State != backup.Failed || snap.Reason == "" {
				m.Errorf("%s: %s, error %v", snap.State, snap.Reason, err)
			}
		case "good":
			m.wantTree(snap, err)
		case "gone":
			m.wantGone(c, now, snap, err)
		case "kept":
			m.wantKept(c, now, last, snap, err)
		default:
			m.Fatalf("what is %q?", c.want)
		}
	}
	m.wantTree(m.backup()) // it has recovered
	if found := m.check(check.Index); len(found) > 0 {
		m.Errorf("%s: a check finds %q", c, found)
	}
}

// byReader reports whether it is the reader that cannot open the directory, for the files to be
// read.
func (c *cell) byReader() bool { return c.fault.Call == faultsource.OpenDirectory && c.kept == content }

// affected reports whether a path has the result of the cell.
func (c *cell) affected(path string) bool {
	if c.byReader() {
		return path == aFile || !c.later && filepath.Dir(path) == aDirectory && strings.HasSuffix(path, "file")
	}
	return path == c.fault.Path || c.below && strings.HasPrefix(path, c.fault.Path+"/")
}

// wantGone checks that the affected paths are left out and counted, and everything else equals the
// present tree.
func (m *faultyMachine) wantGone(c *cell, now state, snap backup.Snapshot, err error) {
	m.Helper()
	got := m.committed(snap, err)
	want, vanished := state{}, int64(0)
	for path, e := range now {
		if !c.affected(path) {
			want[path] = e
		} else if !c.below || path == c.fault.Path {
			vanished++
		}
	}
	if c.below { // its parent lists the directory, of which nothing is known
		want[c.fault.Path] = entry{kind: backup.Directory, flags: backup.AttributesUnknown}
	}
	if c.byReader() {
		dir := want[aDirectory] // flagged because some of its files are missing
		dir.flags |= backup.ChangedWhileRead
		want[aDirectory] = dir
	}
	m.wantState(got, want)
	if n := snap.Counts; n.Vanished != vanished || n.Errors != 0 || n.Carried != 0 {
		m.Errorf("%d vanished, %d errors, %d carried; want %d vanished", n.Vanished, n.Errors, n.Carried, vanished)
	}
}

// wantKept checks that the affected paths are as in the last good snapshot, flagged, and reported
// as a problem, and that everything else equals the present tree.
func (m *faultyMachine) wantKept(c *cell, now, last state, snap backup.Snapshot, err error) {
	m.Helper()
	got := m.committed(snap, err)
	want := state{}
	var problems []string
	for path := range mergedKeys(now, last) {
		e, was := now[path], last[path]
		if !c.affected(path) {
			if _, there := now[path]; there {
				want[path] = e
			}
			continue
		}
		if !c.below || path == c.fault.Path {
			problems = append(problems, path)
		}
		if e, there := c.keptEntry(path, e, was); there {
			want[path] = e
		}
	}
	m.wantState(got, want)
	slices.Sort(problems)
	said := m.problems(snap.ID)
	if n := snap.Counts; !slices.Equal(said, problems) || n.Errors != int64(len(problems)) || n.Vanished != 0 || c.later && c.kept != xattrs && n.Carried == 0 {
		m.Errorf("problems of %q, want %q; counts %+v", said, problems, n)
	}
}

// keptEntry returns the kept entry of a snapshot for an entry that is now e, and was was before.
func (c *cell) keptEntry(path string, e, was entry) (kept entry, there bool) {
	switch c.kept {
	case xattrs:
		e.flags, e.xattrs = backup.XattrsUnreadable, was.xattrs
		return e, true
	case content:
		if !c.later {
			e.flags, e.content, e.xattrs = backup.Unreadable|backup.ContentMissing, "", ""
			return e, true
		}
	case directory:
		if path != c.fault.Path {
			return was, c.later
		}
		if !c.later && c.fault.Call != faultsource.List {
			return entry{kind: backup.Directory, flags: backup.Unreadable | backup.AttributesUnknown}, true
		}
		if !c.later { // its own attributes are known; the xattrs are read with its entries
			e.flags, e.xattrs = backup.Unreadable, ""
			return e, true
		}
	case wholeEntry:
		if !c.later { // its name is known
			return entry{kind: backup.File, flags: backup.Unreadable | backup.ContentMissing | backup.AttributesUnknown}, true
		}
	}
	was.flags = backup.Unreadable
	return was, true
}

func (m *faultyMachine) problems(id backup.SnapshotID) (paths []string) {
	m.Helper()
	for p, err := range m.Index.Problems(m.Context(), id) {
		m.must(err)
		paths = append(paths, p.Path)
	}
	slices.Sort(paths)
	return paths
}

// change changes everything that a cell concerns, so that each call is made again.
func (m *faultyMachine) change() {
	m.Helper()
	m.changes++
	dir := filepath.Join(m.dir, aDirectory)
	m.write(filepath.Join(dir, "file"), fileBytes+m.changes)
	m.must(os.Remove(filepath.Join(dir, "link")))
	m.must(os.Symlink(fmt.Sprint("target ", m.changes), filepath.Join(dir, "link")))
	for _, name := range []string{"", "file", "link"} {
		m.setXattr(filepath.Join(dir, name), fmt.Sprint("value ", m.changes))
	}
	m.must(os.WriteFile(filepath.Join(dir, "sub/below"), fmt.Append(nil, "below ", m.changes), 0o600))
}
