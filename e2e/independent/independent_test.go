//go:build independent && linux

package independent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/store"
)

// python skips the test where Python or its packages are not there.
func python(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", "import blake3, cryptography, zstandard").CombinedOutput(); err != nil {
		t.Skipf("python3 with the packages of requirements.txt: %v\n%s", err, out)
	}
}

// restore runs the reader, and returns its target, exit status and messages.
func (m *maker) restore(snapshot string, more ...string) (target string, status int, messages string) {
	m.t.Helper()
	target = filepath.Join(m.t.TempDir(), "restored")
	args := append([]string{"-B", "restore.py", "--store", m.path(), "--identity", m.identity, "--snapshot", snapshot, "--target", target}, more...)
	cmd := exec.CommandContext(m.t.Context(), "python3", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return target, exit.ExitCode(), stderr.String()
	}
	check(m.t, err)
	return target, 0, stderr.String()
}

// restored fails the test unless the snapshot is restored without a word.
func (m *maker) restored(s *backup.Snapshot, tree string) {
	m.t.Helper()
	target, status, messages := m.restore(s.ID.String())
	if status != 0 || messages != "" {
		m.t.Errorf("snapshot %d: status %d\n%s", s.Number, status, messages)
		return
	}
	treetest.Equal(m.t, tree, target)
}

// refused fails the test unless the reader says why, and restores nothing.
func (m *maker) refused(what, because string) {
	m.t.Helper()
	target, status, messages := m.restore("latest")
	if _, err := os.Lstat(target); status != 1 || !strings.Contains(messages, because) || !errors.Is(err, fs.ErrNotExist) {
		m.t.Errorf("%s: status %d, want %q\n%s", what, status, because, messages)
	}
}

var when = time.Date(2001, 2, 3, 4, 5, 6, 789_012_345, time.UTC)

// manyNames are so long that a directory of them has several pages.
func manyNames(yield func(string) bool) {
	for i := range 800 {
		if !yield(fmt.Sprintf("%x-%d-%s", i*7919, i, strings.Repeat("n", 200))) {
			return
		}
	}
}

// everything is a tree with all that a filer can have; what takes root is there as root only.
func everything() treetest.Tree {
	tree := treetest.Tree{
		"empty":                   treetest.File(""),
		"small":                   treetest.File("a small file\n").WithMode(0o600).WithMtime(when),
		"text":                    treetest.File(text(200_000)).WithMode(0o4755),
		"large":                   treetest.File(noise(9 << 20)),
		"large of holes":          treetest.Sparse(40<<20, treetest.Extent{Offset: 1 << 20, Data: noise(3 << 20)}, treetest.Extent{Offset: 20 << 20, Data: text(1 << 20)}, treetest.Extent{Offset: 30 << 20, Data: noise(5 << 20)}),
		"hole":                    treetest.Sparse(1 << 30),
		"hole at the end":         treetest.Sparse(1<<20, treetest.Extent{Data: noise(8192)}),
		"before 1970":             treetest.File("old").WithMtime(time.Unix(-5, 7)),
		"caf\xe9":                 treetest.File("a name that is not UTF-8"),
		"link":                    treetest.Symlink("../some\xff/where").WithMtime(when),
		"fifo":                    treetest.FIFO().WithMode(0o620),
		"socket":                  treetest.Socket(),
		"hard/one":                treetest.File(noise(5000)),
		"hard/two":                treetest.HardLink("hard/one"),
		"hard/deeper/three":       treetest.HardLink("hard/one"),
		"hard/fifo":               treetest.FIFO(),
		"hard/fifo again":         treetest.HardLink("hard/fifo"),
		"xattrs":                  treetest.File("x").WithXattr("user.small", "value").WithXattr("user.empty", ""),
		"xattrs large":            treetest.File("y").WithXattr("user.large", noise(2000)),
		"a/b/c/d/e/f/g":           treetest.File("deep"),
		"directory":               treetest.Dir().WithMode(0o1770).WithMtime(when).WithXattr("user.directory", "d"),
		"directory large/of/some": treetest.Dir().WithXattr("user.large", noise(1500)),
		"mnt/same":                treetest.File(text(300)).WithMtime(when),
		"stale/one":               treetest.File("content of one").WithMtime(when),
		"stale/two":               treetest.File("content of two").WithMtime(when),
	}
	for name := range manyNames {
		tree["many/"+name] = treetest.File(fmt.Sprint("file ", len(tree)%50))
	}
	if os.Geteuid() == 0 {
		tree["owned"] = treetest.File("by others").WithOwner(1234, 4_000_000_000).WithMode(0o6711)
		tree["null"] = treetest.CharDev(1, 3)
		tree["large numbers"] = treetest.BlockDev(4000, 1_000_000)
	}
	return tree
}

// fictions are what no tree of a test can have: mounts, and inodes that were used again.
func fictions(m *maker) func(path string, e *backup.Entry) {
	return func(path string, e *backup.Entry) {
		switch path {
		case "mnt": // its own file system, with an inode that the other has too
			e.Flags |= backup.Boundary
		case "mnt/same", "same":
			e.Inode, e.Nlink, e.Btime = 4711, 2, backup.Time{}
		case "stale/one", "stale/two": // looked at before and after the inode was used again
			e.Inode, e.Nlink, e.Btime = 4712, 2, backup.Time{}
			if path == "stale/one" { // both may have been made within one tick of the kernel's clock
				e.Ctime.Sec--
			}
		}
	}
}

func TestRestoreFromDocumentation(t *testing.T) {
	python(t)
	m := newMaker(t)
	m.edit = fictions(m)
	tree := filepath.Join(t.TempDir(), "tree")
	content := everything()
	content["same"] = content["mnt/same"]
	treetest.Make(t, tree, content)
	first := m.backup(tree, false)
	m.restored(first, tree)

	// Later snapshots: what changed, a checkpoint, and one that changed nothing.
	check(t, os.Remove(filepath.Join(tree, "small")))
	check(t, os.RemoveAll(filepath.Join(tree, "a")))
	check(t, os.Rename(filepath.Join(tree, "hard"), filepath.Join(tree, "moved")))
	treetest.Make(t, tree, treetest.Tree{"many/new": treetest.File("new"), "text": treetest.File(text(100_000)), "small": treetest.Dir(), "small/x": treetest.File("x")})
	second := m.backup(tree, false)
	m.restored(second, tree)
	treetest.Make(t, tree, treetest.Tree{"more": treetest.File("more")})
	third := m.backup(tree, true)
	m.restored(third, tree)
	fourth := m.backup(tree, false)
	if fourth.Segment.Parts != 0 {
		t.Errorf("a snapshot that changed nothing has a segment of %d parts", fourth.Segment.Parts)
	}
	m.restored(fourth, tree)

	// Housekeeping: thinned packs, several in an object, chunks in several packs.
	m.thin(first)
	m.thin(third)
	m.restored(fourth, tree)

	// The checkpoint stands for all that came before it.
	for _, s := range []*backup.Snapshot{first, second} {
		check(t, os.RemoveAll(filepath.Join(m.path(), store.SegmentsPrefix+s.ID.String())))
		check(t, m.store.Delete(t.Context(), store.CommitName(s.ID)))
	}
	m.restored(fourth, tree)

	// Amended records: the one of the greatest amendment is valid, and says on what its segment is
	// based.
	wrong := *third
	wrong.Segment.Parts = 7
	m.amend(&wrong, nil, 1)
	m.amend(third, nil, 2)
	m.amend(fourth, third, 1)
	check(t, m.store.Delete(t.Context(), store.CommitName(fourth.ID)))
	m.restored(fourth, tree)
	m.restored(third, tree)
}

// A restore reports each flaw of a snapshot, and restores everything else.
func TestFlawsAreSaid(t *testing.T) {
	python(t)
	m := newMaker(t)
	tree := filepath.Join(t.TempDir(), "tree")
	treetest.Make(t, tree, treetest.Tree{"torn": treetest.File("a"), "d/f": treetest.File("b"), "x": treetest.File("c")})
	m.edit = func(path string, e *backup.Entry) {
		switch {
		case path == "torn":
			e.Flags |= backup.ChangedWhileRead
		case path == "d" && e.Name == "":
			*e = backup.Entry{Kind: backup.Directory, Flags: backup.Unreadable | backup.AttributesUnknown}
		case path == "x":
			e.Flags |= backup.XattrsUnreadable | backup.Racy | 1<<13 // and a flag of the future
		}
	}
	s := m.backup(tree, false)
	target, status, messages := m.restore(s.ID.Short())
	for _, want := range []string{"torn: changed", "d: could not be read", "d: attributes", "x: extended attributes"} {
		if !strings.Contains(messages, want) {
			t.Errorf("nothing says %q:\n%s", want, messages)
		}
	}
	if status != 3 || strings.Count(messages, "\n") != 4 {
		t.Errorf("status %d\n%s", status, messages)
	}
	if data, err := os.ReadFile(filepath.Join(target, "d/f")); err != nil || string(data) != "b" {
		t.Errorf("%q, %v", data, err)
	}
}

// Objects that are missing, damaged or forged are refused.
func TestDamageIsRefused(t *testing.T) {
	python(t)
	m := newMaker(t)
	tree := filepath.Join(t.TempDir(), "tree")
	content := treetest.Tree{"file": treetest.File(noise(3000)), "d/file": treetest.File(noise(3000)), "e/f/g": treetest.File("g")}
	for name := range manyNames {
		content["many/"+name] = treetest.FIFO()
	}
	treetest.Make(t, tree, content)
	first := m.backup(tree, false)
	treetest.Make(t, tree, treetest.Tree{"more": treetest.File("more")})
	second := m.backup(tree, false)
	m.restored(second, tree)
	other := newMaker(t)
	other.worker, other.keys.Repository, other.keys.Sealer = m.worker, m.keys.Repository, m.keys.Sealer

	segment := func(s *backup.Snapshot) string { return store.SegmentName(s.ID, s.Segment.Attempt, 0) }
	for what, test := range map[string]struct {
		name    string
		change  func(data []byte) []byte
		because string
	}{
		"no segment":                      {segment(first), func([]byte) []byte { return nil }, "is not in the store"},
		"no record of the base":           {store.CommitName(first.ID), func([]byte) []byte { return nil }, "is not in the store"},
		"a bit of a segment":              {segment(first), flip(100), segment(first)},
		"a bit of a record":               {store.CommitName(second.ID), flip(700), "0 committed snapshots"},
		"a segment that is cut":           {segment(second), func(b []byte) []byte { return b[:len(b)-1] }, segment(second)},
		"a segment that is appended to":   {segment(second), func(b []byte) []byte { return append(b, 0) }, segment(second)},
		"a bit of the repository":         {store.ConfigName, flip(60), "repository"},
		"the signature of the repository": {store.ConfigName, flip(len(m.read(store.ConfigName)) - 2), "repository"},
		"another's segment":               {segment(second), func([]byte) []byte { return m.read(segment(first)) }, segment(second)},
	} {
		m.replaced(test.name, test.change, func() {
			latest := "latest"
			if what == "a bit of a record" {
				latest = second.ID.String()
			}
			target, status, messages := m.restore(latest)
			if _, err := os.Lstat(target); status != 1 || !strings.Contains(messages, test.because) || err == nil {
				t.Errorf("%s: status %d, want %q\n%s", what, status, test.because, messages)
			}
		})
	}
	m.restored(second, tree)
}

func (m *maker) read(name string) []byte {
	m.t.Helper()
	data, err := m.store.Get(m.t.Context(), name, 64<<20)
	check(m.t, err)
	return data
}

func flip(at int) func([]byte) []byte {
	return func(b []byte) []byte { b[at] ^= 1; return b }
}

// replaced changes an object while do runs; nil: it is not there.
func (m *maker) replaced(name string, change func([]byte) []byte, do func()) {
	m.t.Helper()
	ctx, old := context.Background(), m.read(name)
	check(m.t, m.store.Delete(ctx, name))
	if data := change(append([]byte(nil), old...)); data != nil {
		check(m.t, m.store.Put(ctx, name, data))
		defer func() { check(m.t, m.store.Put(ctx, name, old)) }()
		defer func() { check(m.t, m.store.Delete(ctx, name)) }()
	} else {
		defer func() { check(m.t, m.store.Put(ctx, name, old)) }()
	}
	do()
}

// Somebody who has the recipients, which are public, makes all objects anew.
func TestForgeriesAreRefused(t *testing.T) {
	python(t)
	m := newMaker(t)
	tree := filepath.Join(t.TempDir(), "tree")
	treetest.Make(t, tree, treetest.Tree{"file": treetest.File("file")})
	genuine := m.backup(tree, false)

	forger := *m
	forger.keys.Signing = seal.NewSigningKey()
	treetest.Make(t, tree, treetest.Tree{"file": treetest.File("forged")})
	forged := forger.backup(tree, false)
	_, status, messages := m.restore(forged.ID.String())
	if status != 1 || !strings.Contains(messages, store.CommitName(forged.ID)+" is not signed") {
		t.Errorf("a snapshot that another has signed: status %d\n%s", status, messages)
	}
	// A genuine record under the name of another snapshot, and of another repository.
	check(t, m.store.Put(t.Context(), store.CommitName(backup.SnapshotID{1}), m.read(store.CommitName(genuine.ID))))
	elsewhere := *m
	elsewhere.keys.Repository = backup.RepositoryID{9}
	foreign := elsewhere.backup(tree, false)
	for _, id := range []backup.SnapshotID{{1}, foreign.ID} {
		if _, status, messages := m.restore(id.String()); status != 1 || !strings.Contains(messages, store.CommitName(id)) {
			t.Errorf("snapshot %s: status %d\n%s", id, status, messages)
		}
	}

	// The whole repository object, replaced by one that its maker has signed: the
	// identity file knows better.
	object := string(m.read(store.ConfigName))
	body, _, _ := strings.Cut(object, "signature ")
	body = strings.Replace(body, m.worker.Signer.String(), forger.keys.Signing.Signer().String(), 1)
	signature := forger.keys.Signing.Sign(m.keys.Repository, store.ConfigName, []byte(body))
	m.replaced(store.ConfigName, func([]byte) []byte { return fmt.Appendf(nil, "%ssignature %x\n", body, signature) }, func() {
		_, status, messages := m.restore(forged.ID.String())
		if status != 1 || !strings.Contains(messages, "replaced") {
			t.Errorf("the object of another signer: status %d\n%s", status, messages)
		}
	})
	_, status, messages = m.restore(genuine.ID.String(), "--signer", seal.NewSigningKey().Signer().String())
	if status != 1 || !strings.Contains(messages, "replaced") {
		t.Errorf("another signer is known: status %d\n%s", status, messages)
	}
}

// A snapshot that was signed without some of its pages: the chain, the parent
// or the digest shows it.
func TestMissingPagesAreSeen(t *testing.T) {
	python(t)
	tree := filepath.Join(t.TempDir(), "tree")
	content := treetest.Tree{"d/e/f": treetest.File("f")}
	for name := range manyNames {
		content["many/"+name] = treetest.FIFO()
	}
	treetest.Make(t, tree, content)
	for what, test := range map[string]struct {
		drop    func(v *backup.PageVersion) bool
		because string
	}{
		"a later page": {func(v *backup.PageVersion) bool { return v.Path == "many" && v.Key != 0 }, "b'many' is missing"},
		"a first page": {func(v *backup.PageVersion) bool { return v.Path == "d/e" }, "page 0 of b'd/e' is missing"},
		"a parent":     {func(v *backup.PageVersion) bool { return v.Path == "" }, "page 0 of b'' is missing"},
	} {
		m := newMaker(t)
		m.drop = test.drop
		m.backup(tree, false)
		m.refused(what, test.because)
	}
	// A page that no other leads to, and a digest that is not that of the pages.
	m := newMaker(t)
	first := m.backup(tree, false)
	second := *first
	second.ID, second.Number, second.Base, second.BaseID = backup.NewSnapshotID(), 2, 1, first.ID
	second.Segment, second.Pages.Pages = backup.Segment{}, second.Pages.Pages+1
	m.record(&second)
	m.refused("a digest of another content", "consists of")
	m = newMaker(t)
	m.backup(tree, false)
	m.orphan(backup.PageVersion{Path: "gone", Listing: m.pages[backup.PageName{Path: "d"}].Listing})
	m.refused("a page that belongs nowhere", "no page leads to")
}

// orphan makes a snapshot that adds one page to the last one.
func (m *maker) orphan(v backup.PageVersion) {
	s := *m.last
	s.ID, s.Number, s.Base, s.BaseID = backup.NewSnapshotID(), m.last.Number+1, m.last.Number, m.last.ID
	segment, err := journal.WriteSegment(m.keys, &s, false, m.content, func(yield func(backup.PageChange, error) bool) {
		yield(addedPage(v), nil)
	}, func(name string, data []byte) error { return m.store.Put(m.t.Context(), name, data) })
	check(m.t, err)
	s.Pages, s.Segment = segment.Content, backup.Segment{Attempt: segment.Attempt, Parts: segment.Parts}
	m.record(&s)
}

// A chunk whose copies are all damaged costs its file; one good copy is enough.
func TestDamagedChunks(t *testing.T) {
	python(t)
	m := newMaker(t)
	tree := filepath.Join(t.TempDir(), "tree")
	treetest.Make(t, tree, treetest.Tree{"one": treetest.File(noise(100_000)), "two": treetest.File(noise(100_000))})
	s := m.backup(tree, false)
	var name string
	for o, err := range m.store.List(t.Context(), store.PacksPrefix) {
		check(t, err)
		name = o.Name
	}
	m.replaced(name, flip(5000), func() {
		target, status, messages := m.restore("latest")
		if status != 3 || strings.Count(messages, "\n") != 1 || !strings.Contains(messages, "does not authenticate") {
			t.Errorf("a damaged frame: status %d\n%s", status, messages)
		}
		left, err := os.ReadDir(target)
		if err != nil || len(left) != 1 {
			t.Errorf("%d files of two are restored: %v", len(left), err)
		}
		// A copy of all chunks in another pack.
		m.chunks = map[backup.ChunkID]bool{}
		m.readFile(filepath.Join(tree, "one"), 1)
		m.readFile(filepath.Join(tree, "two"), 1)
		m.putPack(s.ID)
		target, status, messages = m.restore("latest")
		if status != 0 || messages != "" && !strings.Contains(messages, "another copy is good") {
			t.Errorf("with a good copy: status %d\n%s", status, messages)
		}
		treetest.Equal(t, tree, target)
	})
}

// The golden files, read by the independent reader.
func TestGoldenFiles(t *testing.T) {
	python(t)
	out, err := exec.CommandContext(t.Context(), "python3", "-B", "-m", "unittest", "-v", "golden").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
