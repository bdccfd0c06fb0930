package embedded_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/nfs3"
	"github.com/bctl/bctl/internal/nfs3/nfs3test"
	"github.com/bctl/bctl/internal/source/nfs"
	"github.com/bctl/bctl/services/bctl/embedded"
)

// What an NFS server does not give is an error with its path, and the snapshot keeps the last good
// copy. Nothing counts as deleted.
func TestFaultyNFSServer(t *testing.T) {
	s := nfs3test.Serve(t)
	dir := s.Add(s.Root, "dir", nfs3.Directory, "")
	sub := s.Add(dir, "sub", nfs3.Directory, "")
	s.Add(sub, "deep", nfs3.Regular, "deep")
	file := s.Add(dir, "file", nfs3.Regular, "content")
	s.Add(s.Root, "other", nfs3.Regular, "other")
	r := newRepository(t)
	r.Source = nfs.New(nfs.Options{})
	_, port, _ := strings.Cut(s.Address(), ":")
	shard := r.addShard(backup.Shard{Source: fmt.Sprintf("nfs://%s/export?mountport=%s&timeout=300ms&retry=2s&uid=0&gid=0&groups=", s.Address(), port)})
	run := func() (backup.Snapshot, []string) {
		t.Helper()
		snap, err := embedded.Backup(t.Context(), r.Options, shard, backup.Snapshot{}, nil)
		r.must(err)
		if snap.State != backup.Committed {
			t.Fatalf("the snapshot is %s: %s", snap.State, snap.Reason)
		}
		var paths []string
		for p, err := range r.Index.Problems(t.Context(), snap.ID) {
			r.must(err)
			paths = append(paths, p.Path)
		}
		slices.Sort(paths)
		return snap, paths
	}
	if snap, paths := run(); snap.Counts.Files != 3 || len(paths) > 0 {
		t.Fatalf("%d files, problems of %q", snap.Counts.Files, paths)
	}
	for _, status := range []nfs3.Status{nfs3.StatusIO, nfs3.StatusAccess, nfs3.StatusNoEnt} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s.Do(func() {
				file.Attr.Mtime.Sec++ // it is read again
				file.Attr.Ctime.Sec++
			})
			s.Deny(func(op string, n *nfs3test.Node) nfs3.Status {
				if strings.HasPrefix(op, "READDIR") && n == sub || op == "READ" && n == file {
					return status
				}
				return nfs3.StatusOK
			})
			defer s.Deny(nil)
			snap, paths := run()
			if snap.Counts.Files != 3 || strings.Join(paths, " ") != "dir/file dir/sub" {
				t.Errorf("%d files, problems of %q; want 3, of dir/file and dir/sub", snap.Counts.Files, paths)
			}
		})
	}
	if snap, paths := run(); snap.Counts.Files != 3 || len(paths) > 0 {
		t.Errorf("after the faults: %d files, problems of %q", snap.Counts.Files, paths)
	}
}
