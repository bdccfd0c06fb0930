package containers

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// A shape is how large a tree is.
type shape struct {
	directories, files int // files a directory
	meanBytes          int
}

// spread makes many tasks and batches: the first slice is of 64 directories.
// heavy makes packs that take a store some time.
var (
	spread = shape{directories: 250, files: 4, meanBytes: 6000}
	heavy  = shape{directories: 100, files: 3, meanBytes: 300_000}
)

// A backup is one that runs, of a tree of its own.
type backup struct {
	*fleet.Running
	project *project
	tree    string // on this machine
	began   time.Time
}

const filer = "machine"

// backup makes a tree, registers it, and begins to back it up.
func (p *project) backup(t *testing.T, name string, s shape) *backup {
	t.Helper()
	name = strings.ReplaceAll(name, " ", "-")
	b := &backup{project: p, tree: filepath.Join(p.data, name)}
	makeTree(t, b.tree, s)
	client := p.client(t)
	shard := "/data/" + name
	if !p.registered {
		client.Must("filer", "add", filer)
		p.registered = true
	}
	client.Must("shard", "add", filer, shard)
	known := len(p.index(t).Snapshots())
	b.began = time.Now()
	b.Running = client.Start("backup", "--json", "--filer", filer, "--shard", shard)
	fleet.Await(t, "a running snapshot", func() bool { return b.Ended() || len(p.index(t).Snapshots()) > known })
	return b
}

// awaitSettled waits until so many tasks and batches are settled.
func (b *backup) awaitSettled(t *testing.T, n int64) {
	t.Helper()
	index := b.project.index(t)
	fleet.Await(t, "work to be settled", func() bool { return b.Ended() || index.Work().Settled() >= n })
	if b.Ended() {
		t.Log("the backup had ended before the fault")
	}
}

// client returns one that runs commands as people do: in a container, as the operator.
func (p *project) client(t *testing.T) *fleet.Client {
	t.Helper()
	client := fleet.NewClient(t)
	client.Program = p.run
	return client
}

// restore restores a snapshot into a directory of this machine and returns that.
func (p *project) restore(t *testing.T, snapshot string) string {
	t.Helper()
	p.client(t).Must("restore", snapshot, "--target", "/var/lib/bctl/restored/"+snapshot)
	return filepath.Join(p.restored, snapshot)
}

func (p *project) index(t *testing.T) *fleet.Index {
	t.Helper()
	return fleet.OpenPostgres(t, p.dsn)
}

// judge fails the test unless the backup commits its snapshot by itself, which
// restores equal, and nothing of it is left over.
func (b *backup) judge(t *testing.T) {
	t.Helper()
	out := b.Wait()
	took := time.Since(b.began)
	if out.Status != 0 {
		t.Fatalf("%s", out)
	}
	made := out.Summary(t)
	all, directories := treetest.Count(t, b.tree)
	if made.State != "committed" || made.Files != all-directories || made.Directories != directories || made.StatCalls != all || made.Errors != 0 {
		t.Errorf("a tree of %d entries, %d of them directories: %+v", all, directories, made)
	}
	treetest.Equal(t, b.tree, b.project.restore(t, made.Snapshot))
	index := b.project.index(t)
	index.CheckSettled()
	orphans := fleet.CheckStore(t, filepath.Join(b.project.store, "bctl", "repo"), index)
	t.Logf("committed after %.1f s; %d orphans", took.Seconds(), orphans)
}

// makeTree makes a tree of directories three deep, with a few of each kind of entry.
func makeTree(t *testing.T, dir string, s shape) {
	t.Helper()
	random := rand.New(rand.NewPCG(uint64(len(dir)), rand.Uint64()))
	tree := treetest.Tree{
		"special/sparse":  treetest.Sparse(16<<20, treetest.Extent{Offset: 1 << 20, Data: "in the middle"}),
		"special/symlink": treetest.Symlink("../nowhere"),
		"special/a":       treetest.File("two names").WithMtime(time.Date(1999, 12, 31, 23, 59, 59, 123456789, time.UTC)),
		"special/b":       treetest.HardLink("special/a"),
		"special/fifo":    treetest.FIFO(),
		"special/xattr":   treetest.File("with").WithXattr("user.one", "1"),
		"special/empty":   treetest.Dir().WithMode(0o1777),
		"special/owned":   treetest.File("somebody's").WithOwner(1234, 5678).WithMode(0o2644),
	}
	for d := range s.directories {
		for f := range s.files {
			content := make([]byte, random.IntN(2*s.meanBytes+1))
			for i := range content {
				content[i] = byte(random.Uint32())
			}
			tree[fmt.Sprintf("a%02d/b%d/c%03d/f%03d", d%10, d%3, d, f)] = treetest.File(string(content))
		}
	}
	treetest.Make(t, dir, tree)
	<-time.After(50 * time.Millisecond) // what changes later has a later time, by the clock's grain
}
