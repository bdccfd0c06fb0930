//go:build linux

package nfs_test

import (
	"fmt"
	"net/url"
	"os"
	"testing"

	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/nfs"
	"github.com/bctl/bctl/internal/source/sourcetest"
	"github.com/bctl/bctl/internal/testenv"
)

// ganesha starts a server that exports the directory in which all temporary directories of the test
// are from then on.
func ganesha(t *testing.T) (server *testenv.NFSServer, urlOf func(dir string) string) {
	t.Helper()
	export := t.TempDir()
	if err := os.Chmod(export, 0o755); err != nil {
		t.Fatal(err)
	}
	server = testenv.Ganesha(t, export)
	t.Setenv("TMPDIR", export)
	return server, func(dir string) string {
		u := url.URL{Scheme: "nfs", Host: fmt.Sprintf("127.0.0.1:%d", server.Port), Path: dir, RawQuery: fmt.Sprintf("mountport=%d", server.MountPort)}
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

func TestSnapshots(t *testing.T) {
	_, urlOf := ganesha(t)
	sourcetest.RunSnapshots(t, nfs.New(nfs.Options{}), urlOf, sourcetest.Mounts)
}
