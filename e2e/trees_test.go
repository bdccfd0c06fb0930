package e2e_test

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/source/treetest"
)

// everyKind is a tree with each kind of entry that bctl keeps.
func everyKind() treetest.Tree {
	random := rand.New(rand.NewPCG(1, 1))
	noise := make([]byte, 9<<20)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	old := time.Date(1999, 12, 31, 23, 59, 59, 123456789, time.UTC)
	tree := treetest.Tree{
		"etc/passwd":          treetest.File("root:x:0:0\n").WithMode(0o600).WithMtime(old),
		"etc/future":          treetest.File("later").WithMtime(time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)),
		"empty file":          treetest.File(""),
		"empty/directory":     treetest.Dir().WithMode(0o700).WithMtime(old),
		"sticky":              treetest.Dir().WithMode(0o1777),
		"set/id":              treetest.File("#!").WithMode(0o4755),
		"large":               treetest.File(string(noise)),
		"large again":         treetest.File(string(noise)),
		"large changed":       treetest.File("x" + string(noise)),
		"text":                treetest.File(strings.Repeat("the same line\n", 100_000)),
		"sparse":              treetest.Sparse(64<<20, treetest.Extent{Offset: 1 << 20, Data: "in the middle"}),
		"only a hole":         treetest.Sparse(8 << 20),
		"links/a":             treetest.File("three names").WithMtime(old),
		"links/b":             treetest.HardLink("links/a"),
		"elsewhere/c":         treetest.HardLink("links/a"),
		"links/symlink":       treetest.Symlink("a").WithMtime(old),
		"links/dangling":      treetest.Symlink("../../../nowhere"),
		"links/absolute":      treetest.Symlink("/etc/passwd"),
		"special/fifo":        treetest.FIFO().WithMode(0o620),
		"special/socket":      treetest.Socket(),
		"names/ü\n\"tab\t":    treetest.File("odd"),
		"names/\xff\xfe":      treetest.File("no UTF-8"),
		"names/-rf":           treetest.File("-"),
		"names/\xc3\x28/file": treetest.File("below no UTF-8"),
		"xattr/file":          treetest.File("with").WithXattr("user.one", "1").WithXattr("user.two", "\x00\xff"),
		"xattr/large":         treetest.File("with").WithXattr("user.large", strings.Repeat("v", 2000)),
		"xattr/directory":     treetest.Dir().WithXattr("user.directory", "yes"),
		strings.Repeat("d/", 60) + strings.Repeat("n", 255): treetest.File("deep"),
	}
	if os.Geteuid() == 0 {
		tree["owned"] = treetest.File("somebody's").WithOwner(1234, 5678).WithMode(0o2644)
		tree["owned directory"] = treetest.Dir().WithOwner(4321, 8765)
		tree["owned symlink"] = treetest.Symlink("x").WithOwner(1, 2)
		tree["special/null"] = treetest.CharDev(1, 3)
		tree["special/disk"] = treetest.BlockDev(7, 200)
		tree["unreadable"] = treetest.File("but root can").WithMode(0)
		tree["xattr/trusted"] = treetest.File("trusted").WithXattr("trusted.secret", "s")
	}
	return tree
}

// A shape is how large a generated tree is.
type shape struct {
	directories, files int // files a directory
	meanBytes          int
	longNames          bool // as long as names get, so that a listing is large
}

// generate makes a tree of directories three deep, the same for the same seed.
func generate(t testing.TB, dir string, seed uint64, s shape) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 2))
	buf := make([]byte, 4*s.meanBytes)
	for d := range s.directories {
		path := filepath.Join(dir, fmt.Sprintf("a%02d/b%d/c%03d", d%10, d%3, d))
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range s.files {
			name := fmt.Sprintf("f%03d", f)
			if s.longNames {
				name += randomName(random, 150)
			}
			if err := os.WriteFile(filepath.Join(path, name), randomContent(random, buf, s.meanBytes), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func randomName(random *rand.Rand, size int) string {
	raw := make([]byte, size)
	for i := range raw {
		raw[i] = byte(random.Uint32())
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// randomContent is half text, half noise, in one of a few sizes.
func randomContent(random *rand.Rand, buf []byte, meanBytes int) []byte {
	content := buf[:random.IntN(2*meanBytes+1)]
	if random.IntN(2) == 0 {
		line := fmt.Sprintf("line %d\n", random.IntN(1000))
		return []byte(strings.Repeat(line, len(content)/len(line)+1))
	}
	for i := range content {
		content[i] = byte(random.Uint32())
	}
	return content
}

// copyTree copies a tree with all its attributes, by other means than ours.
func copyTree(t testing.TB, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	copyTo(t, dir, to)
	return to
}

func copyTo(t testing.TB, from, to string) {
	t.Helper()
	if output, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, output)
	}
}

// settle waits until the clock has gone on far enough that a snapshot which starts
// now can tell later changes from those that were made until now.
func settle(t testing.TB) {
	t.Helper()
	<-time.After(50 * time.Millisecond)
}

// A mutator changes a tree at random.
type mutator struct {
	t      testing.TB
	dir    string
	random *rand.Rand
	made   int      // of new names
	files  []string // what is in the tree, or was a moment ago
	dirs   []string
}

// look lists the tree anew.
func (m *mutator) look() {
	m.t.Helper()
	m.files, m.dirs = nil, nil
	err := filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case path == m.dir:
		case d.IsDir():
			m.dirs = append(m.dirs, path)
		default:
			m.files = append(m.files, path)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// pick returns one of a list that is still there; "" if it finds none.
func (m *mutator) pick(list []string, directory bool) string {
	for range 10 {
		if len(list) == 0 {
			break
		}
		path := list[m.random.IntN(len(list))]
		if info, err := os.Lstat(path); err == nil && info.IsDir() == directory {
			return path
		}
	}
	return ""
}

func (m *mutator) file() string      { return m.pick(m.files, false) }
func (m *mutator) directory() string { return m.pick(m.dirs, true) }

// place returns a path that is not there yet, in a directory that is.
func (m *mutator) place() string {
	m.made++
	parent := m.dir
	if m.random.IntN(4) > 0 {
		if directory := m.directory(); directory != "" {
			parent = directory
		}
	}
	return filepath.Join(parent, fmt.Sprintf("new%d", m.made))
}

// A mutation is one way to change a tree; it returns what it did, and "" where
// there was nothing to do it to.
type mutation func(m *mutator) (string, error)

var mutations = []mutation{
	func(m *mutator) (string, error) { // a new file
		path := m.place()
		return "write " + path, os.WriteFile(path, randomContent(m.random, make([]byte, 1<<16), 1<<14), 0o644)
	},
	func(m *mutator) (string, error) { // a new large file
		path := m.place()
		return "write large " + path, os.WriteFile(path, randomContent(m.random, make([]byte, 6<<20), 2<<20), 0o644)
	},
	func(m *mutator) (string, error) {
		path := m.place()
		return "mkdir " + path, os.MkdirAll(filepath.Join(path, "x", "y"), 0o750)
	},
	func(m *mutator) (string, error) { // same size, same mtime: only ctime tells
		return m.onFile("overwrite", func(path string, info fs.FileInfo) error {
			content := make([]byte, info.Size())
			for i := range content {
				content[i] = byte(m.random.Uint32())
			}
			if err := os.WriteFile(path, content, 0o644); err != nil {
				return err
			}
			return os.Chtimes(path, time.Time{}, info.ModTime())
		})
	},
	func(m *mutator) (string, error) {
		return m.onFile("append to", func(path string, _ fs.FileInfo) error {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString("more\n")
			return err
		})
	},
	func(m *mutator) (string, error) {
		return m.onFile("truncate", func(path string, info fs.FileInfo) error { return os.Truncate(path, info.Size()/2) })
	},
	func(m *mutator) (string, error) { // a hole at the end
		return m.onFile("extend", func(path string, info fs.FileInfo) error { return os.Truncate(path, info.Size()+1<<20) })
	},
	func(m *mutator) (string, error) {
		return m.onFile("chmod", func(path string, _ fs.FileInfo) error { return os.Chmod(path, fs.FileMode(0o400+m.random.IntN(0o400))) })
	},
	func(m *mutator) (string, error) {
		return m.onFile("touch", func(path string, _ fs.FileInfo) error {
			return os.Chtimes(path, time.Time{}, time.Unix(m.random.Int64N(2e9), m.random.Int64N(1e9)))
		})
	},
	func(m *mutator) (string, error) {
		return m.onFile("xattr", func(path string, _ fs.FileInfo) error {
			return unix.Setxattr(path, "user.test", []byte(randomName(m.random, 10)), 0)
		})
	},
	func(m *mutator) (string, error) {
		return m.onFile("link", func(path string, _ fs.FileInfo) error { return os.Link(path, m.place()) })
	},
	func(m *mutator) (string, error) {
		path := m.place()
		return "symlink " + path, os.Symlink(randomName(m.random, 10), path)
	},
	func(m *mutator) (string, error) {
		path := m.file()
		if path == "" {
			return "", nil
		}
		return "remove " + path, os.Remove(path)
	},
	func(m *mutator) (string, error) { // onto another file, maybe
		from, to := m.file(), m.file()
		if from == "" || to == "" {
			return "", nil
		}
		if m.random.IntN(2) == 0 {
			to = m.place()
		}
		return "rename " + from + " to " + to, os.Rename(from, to)
	},
	func(m *mutator) (string, error) {
		path := m.directory()
		if path == "" || m.random.IntN(3) > 0 { // they would soon be few
			return "", nil
		}
		return "remove all " + path, os.RemoveAll(path)
	},
	func(m *mutator) (string, error) { // move a directory, not into itself
		from, to := m.directory(), m.place()
		if from == "" || strings.HasPrefix(to, from+"/") {
			return "", nil
		}
		return "move " + from + " to " + to, os.Rename(from, to)
	},
	func(m *mutator) (string, error) { // two directories change places
		a, b, between := m.directory(), m.directory(), m.place()
		if a == "" || b == "" || strings.HasPrefix(a+"/", b+"/") || strings.HasPrefix(b+"/", a+"/") || strings.HasPrefix(between, a+"/") || strings.HasPrefix(between, b+"/") {
			return "", nil
		}
		for _, step := range [][2]string{{a, between}, {b, a}, {between, b}} {
			if err := os.Rename(step[0], step[1]); err != nil {
				return "", err
			}
		}
		return "swap " + a + " and " + b, nil
	},
	func(m *mutator) (string, error) { // a file becomes a directory
		return m.onFile("replace by a directory", func(path string, _ fs.FileInfo) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			if err := os.Mkdir(path, 0o755); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(path, "inside"), []byte(path), 0o644)
		})
	},
	func(m *mutator) (string, error) { // a directory becomes a file
		path := m.directory()
		if path == "" || m.random.IntN(3) > 0 {
			return "", nil
		}
		if err := os.RemoveAll(path); err != nil {
			return "", err
		}
		return "replace by a file " + path, os.WriteFile(path, []byte("was a directory"), 0o644)
	},
	func(m *mutator) (string, error) {
		path := m.directory()
		if path == "" {
			return "", nil
		}
		return "chmod directory " + path, os.Chmod(path, fs.FileMode(0o700+m.random.IntN(0o100)))
	},
}

// onFile does something to a regular file.
func (m *mutator) onFile(what string, do func(path string, info fs.FileInfo) error) (string, error) {
	path := m.file()
	if path == "" {
		return "", nil
	}
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return "", err
	}
	return what + " " + path, do(path, info)
}

// mutate changes the tree n times, and returns what it did.
func (m *mutator) mutate(n int) (log []string) {
	m.t.Helper()
	for len(log) < n {
		if len(log)%10 == 0 {
			m.look()
		}
		what, err := mutations[m.random.IntN(len(mutations))](m)
		if err != nil {
			m.t.Fatalf("%s: %v", what, err)
		}
		if what != "" {
			log = append(log, what)
		}
	}
	return log
}
