package walk

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// Handling of a page of the last snapshot that the index cannot return. The page is treated as
// missing: its files are read again, and the page is rewritten. That is reported, because the last
// good copies of its files are lost.

var errDamagedPage = errors.New("the index's page of this directory in the last snapshot was damaged; it is made anew, and its files are read again")

var errDamagedCopy = errors.New("the index's page of this directory is damaged, and the directory cannot be read to make it anew")

// damaged records a page that cannot be decoded.
func (w *visit) damaged(page backup.PageName, cause error) {
	if slices.Contains(w.broken, page) {
		return
	}
	w.broken = append(w.broken, page)
	job := &w.slice.task.Job
	w.slice.svc.opts.Log.Warn("a page of the index is damaged", "snapshot", job.Snapshot.Short(), "number", job.Number,
		"filer", job.FilerName, "shard", job.ShardName, "base", job.Base, "directory", page.Path, "page", page.Key, "error", cause)
	w.problems = append(w.problems, backup.Problem{Path: page.Path, Op: "compare", Err: errDamagedPage.Error()})
}

// isBroken reports whether the last snapshot's page of this key is damaged.
func (w *visit) isBroken(key backup.PageKey) bool {
	return slices.Contains(w.broken, backup.PageName{Path: w.path, Key: key})
}

// eachUnlisted calls fn with the names of all subdirectories that have pages in the last snapshot,
// if the directory has damaged pages that may have listed them. Otherwise pages of removed
// subdirectories would stay in the index for ever.
func (w *visit) eachUnlisted(ctx context.Context, fn func(name string)) error {
	if !slices.ContainsFunc(w.broken, func(p backup.PageName) bool { return p.Path == w.path }) {
		return nil
	}
	job := &w.slice.task.Job
	last := ""
	for v, err := range w.slice.svc.index.Subtree(ctx, job.Shard, job.Base, w.path) {
		if err != nil {
			return err
		}
		if v.Path == w.path {
			continue
		}
		below := v.Path
		if w.path != "" {
			below = strings.TrimPrefix(v.Path, w.path+"/")
		}
		if name, _, _ := strings.Cut(below, "/"); name != last {
			fn(name)
			last = name
		}
	}
	return nil
}
