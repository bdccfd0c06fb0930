//go:build linux

package nfs_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/nfs"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/internal/source/treetest"
)

// BenchmarkWalk lists 20,000 files in 200 directories, over NFS from loopback and by path, with
// some directories in flight. Compare entries/s within one run.
func BenchmarkWalk(b *testing.B) {
	const directories, files = 200, 100
	_, urlOf := ganesha(b)
	dir := filepath.Join(os.TempDir(), "tree")
	spec := treetest.Tree{}
	for i := range directories {
		for j := range files {
			spec[fmt.Sprintf("d%d/f%d", i, j)] = treetest.File("")
		}
	}
	treetest.Make(b, dir, spec)
	for name, open := range map[string]func() (source.Tree, error){
		"nfs":   func() (source.Tree, error) { return nfs.New(nfs.Options{}).Open(b.Context(), urlOf(dir)) },
		"posix": func() (source.Tree, error) { return posix.New(posix.Options{}).Open(b.Context(), posix.URL(dir)) },
	} {
		for _, inFlight := range []int{1, 8, 32} {
			b.Run(fmt.Sprintf("%s/%d", name, inFlight), func(b *testing.B) {
				tree, err := open()
				if err != nil {
					b.Fatal(err)
				}
				defer tree.Close()
				entries := int64(0)
				for b.Loop() {
					entries += walk(b, tree, inFlight)
				}
				b.ReportMetric(float64(entries)/b.Elapsed().Seconds(), "entries/s")
			})
		}
	}
}

// walk lists the root and its subdirectories, and returns the number of entries.
func walk(b testing.TB, tree source.Tree, inFlight int) int64 {
	names, _, err := list(b, tree, "")
	if err != nil {
		b.Fatal(err)
	}
	var entries atomic.Int64
	var visits errgroup.Group
	visits.SetLimit(inFlight)
	for _, name := range names {
		visits.Go(func() error {
			d, err := tree.OpenDirectory(b.Context(), name)
			if err != nil {
				return err
			}
			defer d.Close()
			for {
				found, _, err := d.Read(b.Context(), nil, func(string, string, error) {})
				entries.Add(int64(len(found)))
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
			}
		})
	}
	if err := visits.Wait(); err != nil {
		b.Fatal(err)
	}
	return entries.Load() + int64(len(names))
}
