package instant

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/restore"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv"
)

// noted collects problems.
type noted struct{ problems []backup.Problem }

func (n *noted) Progress(restore.Progress) {}
func (n *noted) Change(restore.Change)     {}
func (n *noted) Problem(p backup.Problem)  { n.problems = append(n.problems, p) }
func (n *noted) Mounted() error            { return nil }
func (n *noted) Unavailable(error)         {}
func (n *noted) Stays()                    {}
func (n *noted) Busy()                     {}

// users is what users do in the mounted target.
const users = `
	echo more >> a/b/one
	mv a/b/c moved; echo in >> moved/two; echo new > moved/new
	mv d e; mv e/three many/three
	rm -r gone; mkdir gone; echo fresh > gone/fresh
	rm many/f1 many/f2; echo z > many/f3; chmod 600 many/f4; mv many/f5 many/f6
	mkdir -p n/n2; mv a/b n/n2/b; mv moved n/moved; mv n/n2/b/deep n/deep
	mv empty a/empty; mkdir a/b; echo x > a/b/x; rm -r whole
	ln many/f8 many/link; ln -s /etc many/away
	mkdir x; mv s1 x/old; mv s2 s1; mv x/old s2
	chmod 750 s1; touch -d '2002-02-02' a n
	setfattr -n user.note -v hello many
	mkdir .bctl-instant; echo theirs > .bctl-instant/file
`

// snapshot is what the restore has made.
const snapshot = `
	mkdir -p a/b/c a/b/deep/er d empty gone/old many whole/of/it s1/x s2/y
	for i in 1 2 3 4 5 6 7 8 9; do echo "content $i" > many/f$i; done
	echo one > a/b/one; echo two > a/b/c/two; echo three > d/three; echo deep > a/b/deep/er/file
	ln -s ../a d/symlink; mkfifo d/fifo; mknod d/null c 1 3; echo g > gone/g; echo w > whole/of/it/w
	echo s1 > s1/x/file; echo s2 > s2/y/file
	setfattr -n trusted.overlay.opaque -v y d; setfattr -n trusted.overlay.redirect -v /a whole/of
	find . -depth -exec touch -h -d '2001-02-03 04:05:06.7' {} +
`

func shell(t *testing.T, dir, script string) {
	t.Helper()
	command := exec.Command("sh", "-ec", script)
	command.Dir = dir
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
}

// mergeable returns a directory with a target after its unmounting, and what users saw there.
func mergeable(t *testing.T) (dir, seen string) {
	t.Helper()
	if !testenv.MayMount() {
		t.Skip("this test needs root, who may mount an overlay")
	}
	dir = t.TempDir()
	target := filepath.Join(dir, "target")
	for _, path := range []string{"", Private, Private + "/upper", Private + "/work", Private + "/tree"} {
		if err := os.Mkdir(filepath.Join(target, path), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	shell(t, filepath.Join(target, Private, "tree"), snapshot)
	shell(t, dir, "cp -a target/.bctl-instant/tree below; cp -a target/.bctl-instant/tree/. expected")
	p := open(t, target)
	below, err := unix.Open(filepath.Join(dir, "below"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.mount(below); err != nil {
		t.Fatal(err)
	}
	unix.Close(below)
	shell(t, target, users)
	seen = filepath.Join(dir, "seen")
	shell(t, dir, "cp -a target seen; mv seen/.bctl-instant seen/.bctl-instant-renamed; umount target")
	// The copy lacks attributes that the overlay hides. It may lack a link, because the kernel may
	// forget names, and the numbers of their inodes then change.
	shell(t, seen, "setfattr -n trusted.overlay.opaque -v y e; ln -f many/f8 many/link"+
		"; touch -r ../target/.bctl-instant/upper/many many; touch -r ../target/.bctl-instant/upper .")
	if err := p.plan(0); err != nil {
		t.Fatal(err)
	}
	p.close()
	return dir, seen
}

func open(t *testing.T, target string) *place {
	t.Helper()
	p, err := openPlace(target, &noted{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What users saw in the mounted target is there after the merge. The merge may be interrupted
// before each of its changes.
func TestMergeIsInterrupted(t *testing.T) {
	dir, seen := mergeable(t)
	interrupted := errors.New("interrupted")
	again := func(target string, after int) (changes int, err error) {
		p := open(t, target)
		defer p.close()
		m := &merger{place: p, fault: func() error {
			changes++
			if changes > after {
				return interrupted
			}
			return nil
		}}
		_, err = m.run(t.Context(), true)
		return changes, err
	}
	for after := 0; ; after++ {
		shell(t, dir, "rm -rf again; cp -a target again")
		target := filepath.Join(dir, "again")
		_, err := again(target, after)
		whole := err == nil
		if !whole && !errors.Is(err, interrupted) {
			t.Fatalf("after %d changes: %v", after, err)
		}
		if !whole {
			if _, err := again(target, 1<<30); err != nil {
				t.Fatalf("after %d changes, again: %v", after, err)
			}
		}
		if differences := treetest.Compare(seen, target); len(differences) > 0 {
			t.Fatalf("after %d changes: %q", after, differences)
		}
		if whole {
			t.Logf("%d changes", after)
			return
		}
	}
}

// A target that is used for something else is refused, and nothing in it is changed.
func TestPlaceIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test needs root")
	}
	for name, test := range map[string]struct {
		make string
		want error
	}{
		"not empty":            {"mkdir target; echo x > target/file", backup.ErrInvalid},
		"a file":               {"echo x > target", backup.ErrInvalid},
		"more beside":          {"mkdir -p target/.bctl-instant/tree; chmod 700 target/.bctl-instant; echo x > target/file", backup.ErrInvalid},
		"private is a file":    {"mkdir target; echo x > target/.bctl-instant", fs.ErrInvalid},
		"private is a symlink": {"mkdir target elsewhere; ln -s ../elsewhere target/.bctl-instant", fs.ErrInvalid},
		"private is public":    {"mkdir -p target/.bctl-instant/x; chmod 755 target/.bctl-instant", backup.ErrInvalid},
		"private is another's": {"mkdir -p target/.bctl-instant/x; chmod 700 target/.bctl-instant; chown 1234 target/.bctl-instant", backup.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			shell(t, dir, "mkdir outer; cd outer; "+test.make+"; cd ..; cp -a outer before")
			dir = filepath.Join(dir, "outer")
			p, err := openPlace(filepath.Join(dir, "target"), &noted{})
			if err == nil {
				p.close()
				t.Fatal("it is not refused")
			}
			if test.want == backup.ErrInvalid && !errors.Is(err, backup.ErrInvalid) {
				t.Error(err)
			}
			if differences := treetest.Compare(filepath.Join(dir, "../before"), dir); len(differences) > 0 {
				t.Errorf("%q", differences)
			}
		})
	}
}
