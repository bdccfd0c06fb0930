package read

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A source snapshot that expires while it is read fails the snapshot, at each point at which that
// can be noticed. Its files do not count as deleted.
func TestExpiredSourceSnapshotFailsTheSnapshot(t *testing.T) {
	expires := func(root string) error { return os.RemoveAll(root) }
	rotates := func(root string) error {
		if err := os.Rename(root, root+".old"); err != nil {
			return err
		}
		if err := os.Mkdir(root, 0o700); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(root, "b"), []byte("of another time"), 0o600)
	}
	for name, expire := range map[string]func(string) error{"is deleted": expires, "is replaced": rotates} {
		for _, at := range []string{"before it is opened", "a is opened", "b is opened", "b is read"} {
			t.Run(name+" when "+at, func(t *testing.T) {
				f := newFixture(t, treetest.Tree{
					"snapshots": treetest.Dir(), "snapshots/hourly.1": treetest.Dir(),
					"snapshots/hourly.1/a": treetest.File("a"), "snapshots/hourly.1/b": treetest.File("b"),
				})
				root := filepath.Join(f.dir, "snapshots/hourly.1")
				f.shard.Source = must(posix.New(posix.Options{}).Resolve(f.ctx, f.shard.Source, "snapshots/hourly.*"))(t)
				source := f.unsteady()
				failed := &backup.BatchStored{}
				f.reader.sendBatch = func(_ context.Context, m *backup.BatchStored) error { failed = m; return nil }
				msg := f.batchOf("")
				msg.Job.Source = f.shard.Source
				now := func() error { return expire(root) }
				switch at {
				case "a is opened":
					source.onOpen["a"] = now
				case "b is opened":
					source.onOpen["b"] = now
				case "b is read":
					source.onRead["b"] = func() { _ = now() }
				default:
					if err := now(); err != nil {
						t.Fatal(err)
					}
				}
				f.read(msg)
				if !strings.Contains(failed.Failed, "hourly.1") || len(failed.Pages) > 0 {
					t.Fatalf("result %+v, want that it failed, and why", failed)
				}
				outcomes := must(f.idx.Apply(f.ctx, []index.Result{{Batch: failed}}))(t)
				if !outcomes[0].Failed || outcomes[0].Err != nil || outcomes[0].Complete {
					t.Errorf("outcome %+v", outcomes[0])
				}
			})
		}
	}
}

// A source snapshot that persists is like any other tree, even if files of it are gone.
func TestSourceSnapshotIsRead(t *testing.T) {
	f := newFixture(t, treetest.Tree{
		"snapshots": treetest.Dir(), "snapshots/1": treetest.Dir(),
		"snapshots/1/sub": treetest.Dir(), "snapshots/1/sub/a": treetest.File("a"), "snapshots/1/sub/gone": treetest.File("gone"),
	})
	f.shard.Source = must(posix.New(posix.Options{}).Resolve(f.ctx, f.shard.Source, "snapshots/*"))(t)
	f.begin()
	f.announce(f.pagesOf("sub"))
	msg := f.claim()
	msg.Job.Source = f.shard.Source
	if e := os.Remove(filepath.Join(f.dir, "snapshots/1/sub/gone")); e != nil {
		t.Fatal(e)
	}
	f.read(msg)
	f.commit()
	if all := f.entries(); len(all) != 1 {
		t.Errorf("entries %v", all)
	}
}
