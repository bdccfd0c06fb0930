//go:build linux

package nfs_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/nfs"
	"github.com/bctl/bctl/internal/source/sourcetest"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv"
)

// ganesha starts a server that exports the directory in which all temporary directories of the test
// are from then on.
func ganesha(t testing.TB) (server *testenv.NFSServer, urlOf func(dir string) string) {
	t.Helper()
	export := t.TempDir()
	if err := os.Chmod(export, 0o755); err != nil {
		t.Fatal(err)
	}
	server = testenv.Ganesha(t, export)
	t.Setenv("TMPDIR", export)
	return server, func(dir string) string {
		u := url.URL{Scheme: "nfs", Host: fmt.Sprintf("127.0.0.1:%d", server.Port), Path: dir, RawQuery: fmt.Sprintf("mountport=%d&retry=1m&timeout=500ms", server.MountPort)} // it drops requests about what changes rapidly
		return u.String()
	}
}

// What NFS version 3 has not.
var lacks = sourcetest.Lacks(
	sourcetest.Xattrs, sourcetest.Holes, sourcetest.BirthTime, sourcetest.EarlyTimes, sourcetest.LocalErrors, sourcetest.Devices,
	sourcetest.Binds, sourcetest.Mounts, // nfs-ganesha looks at what is mounted when it starts
)

func TestSource(t *testing.T) {
	_, urlOf := ganesha(t)
	s := nfs.New(nfs.Options{})
	sourcetest.Run(t, func(t *testing.T, dir string) source.Tree {
		t.Helper()
		tree, err := s.Open(t.Context(), urlOf(dir))
		if err != nil {
			t.Fatal(err)
		}
		return tree
	}, lacks)
}

// A server that restarts in the middle of a walk and of a read is waited for, and nothing is lost.
func TestRestart(t *testing.T) {
	server, urlOf := ganesha(t)
	dir := filepath.Join(os.TempDir(), "tree")
	want := strings.Repeat("content ", 1<<20)
	treetest.Make(t, dir, treetest.Tree{"a/b/file": treetest.File(want), "a/other": treetest.File("")})
	tree, err := nfs.New(nfs.Options{}).Open(t.Context(), urlOf(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	d, err := tree.OpenDirectory(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f, err := d.OpenFile(t.Context(), "file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, len(want))
	if _, err := f.ReadAt(buf[:1<<20], 0); err != nil {
		t.Fatal(err)
	}
	server.Restart()
	if n, err := f.ReadAt(buf[1<<20:], 1<<20); err != nil || string(buf) != want {
		t.Errorf("%d bytes, error %v; the content is right: %v", n, err, string(buf) == want)
	}
	server.Kill()
	listed := make(chan struct{})
	go func() {
		defer close(listed)
		names, problems, err := list(t, tree, "a")
		slices.Sort(names)
		wantNames(t, names, err, "b other")
		if len(problems) > 0 {
			t.Errorf("problems %q", problems)
		}
	}()
	server.Restart()
	<-listed
	if err := tree.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestSnapshots(t *testing.T) {
	_, urlOf := ganesha(t)
	sourcetest.RunSnapshots(t, nfs.New(nfs.Options{}), urlOf, sourcetest.Mounts)
}
