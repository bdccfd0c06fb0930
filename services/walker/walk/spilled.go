package walk

import (
	"context"
	"fmt"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// addSpilled is comparePages and addDifferences for a directory that is not in memory. It works
// page by page, and compares each with the last snapshot's page of the same key, at the directory's
// path in that snapshot. A file that moved to another page because the cuts moved is read again.
func (w *visit) addSpilled(ctx context.Context) (subdirectories []string, err error) {
	from, err := w.oldPath(ctx)
	if err != nil {
		return nil, err
	}
	if len(w.marks) > 0 { // if it moved, its old parent directory settles what is gone
		if carried, err := w.settleSpilled(ctx); err != nil || carried {
			return nil, err
		}
	}
	keys := map[backup.PageKey]bool{}
	err = w.spilled.pages(func(key, next backup.PageKey, entries []backup.Entry) error {
		keys[key] = true
		subdirectories = w.subdirectories(subdirectories, entries)
		if len(subdirectories) >= spillSubdirectories {
			if err := w.slice.findings.children(ctx, subdirectories, w.slice.task.Generation); err != nil {
				return err
			}
			subdirectories = nil
		}
		return w.addSpilledPage(ctx, page{key: key, next: next, entries: entries}, from)
	})
	if err != nil {
		return nil, err
	}
	for _, key := range w.marksWithout(keys) {
		if err := w.slice.findings.ended(ctx, backup.PageName{Path: w.path, Key: key}); err != nil {
			return nil, err
		}
	}
	return subdirectories, nil
}

func (w *visit) addSpilledPage(ctx context.Context, p page, from string) error {
	if p.key == 0 {
		p.self = &w.self
	}
	w.pages = w.pages[:0]
	w.comparePage(ctx, p)
	if len(w.pages) > 0 {
		var old backup.Page
		if from != w.path || w.marked(p.key) {
			err := w.eachOld(ctx, []backup.PageName{{Path: from, Key: p.key}}, func(_ string, p *backup.Page) error { old = *p; return nil })
			if err != nil {
				return err
			}
		}
		state := oldState{self: old.Self}
		state.entries, state.gone = appendKept(nil, nil, old.Entries, p.entries)
		if err := w.takeOver(ctx, &w.pages[0], &state); err != nil {
			return err
		}
	}
	err := w.addPages(ctx)
	w.counts, w.problems, w.answers = backup.Counts{}, nil, 0
	return err
}

// settleSpilled decides how entries are recorded that the last snapshot has in the directory and
// that are gone: those that were mounted are kept (I13), other directories are removed. It runs
// before any page is added, because kept entries belong to the pages. carried is as for
// addDifferences.
func (w *visit) settleSpilled(ctx context.Context) (carried bool, err error) {
	old, covered, err := w.spilledState(ctx)
	if err != nil {
		return false, err
	}
	if w.unmounted(old.self) {
		return true, w.slice.carry(ctx, w.path, w.path, errUnmounted, "open")
	}
	if err := w.keepSpilledMounts(ctx, old.mounts, covered); err != nil {
		return false, err
	}
	for _, name := range old.removed {
		if slices.Contains(w.carried, name) {
			continue
		}
		if err := w.slice.findings.removed(ctx, backup.Join(w.path, name)); err != nil {
			return false, err
		}
	}
	return false, nil
}

// keepSpilledMounts is keepMounts for a directory that is not in memory. covered has the sizes of
// the files that now take the place of a mount.
func (w *visit) keepSpilledMounts(ctx context.Context, mounts []backup.Entry, covered map[string]int64) error {
	for i := range mounts {
		if size, is := covered[mounts[i].Name]; is {
			w.uncount(size)
		}
		if err := w.keepMount(ctx, &mounts[i]); err != nil {
			return err
		}
	}
	slices.Sort(w.failed)
	// The last run: it hides what is covered.
	if err := w.spilled.write(listing.Sort(mounts)); err != nil {
		return fmt.Errorf("sort a large directory: %w: %w", err, backup.ErrUnavailable)
	}
	return nil
}

// spilledState is fetchOld for a directory that is not in memory, without the entries that still
// exist. covered has the sizes of the files that have the name of a missing entry.
func (w *visit) spilledState(ctx context.Context) (old oldState, covered map[string]int64, err error) {
	missing, err := w.missingFromPages(ctx, &old)
	if err != nil || len(missing) == 0 {
		return old, nil, err
	}
	covered = map[string]int64{}
	err = w.spilled.pages(func(_, _ backup.PageKey, entries []backup.Entry) error {
		for i := range entries {
			e := &entries[i]
			was, is := missing[e.Name]
			switch {
			case !is:
			case e.Kind == backup.Directory, was.Kind != backup.Directory && e.Flags&backup.Boundary != 0:
				delete(missing, e.Name)
			default:
				covered[e.Name] = e.Size
			}
		}
		return nil
	})
	if err != nil {
		return old, nil, err
	}
	for name, e := range missing {
		if e.Kind == backup.Directory {
			old.removed = append(old.removed, name)
		} else {
			old.mounts = append(old.mounts, e)
		}
	}
	slices.Sort(old.removed)
	err = w.addLostDirectories(ctx, &old)
	return old, covered, err
}

// missingFromPages returns the last snapshot's directories and mounted files that are no longer on
// their former page; they may be on other pages now. It sets old.self if the directory itself has
// changed.
func (w *visit) missingFromPages(ctx context.Context, old *oldState) (missing map[string]backup.Entry, err error) {
	missing = map[string]backup.Entry{}
	note := func(p *backup.Page, entries []backup.Entry) {
		if p.Self != nil {
			old.self = p.Self
		}
		for _, name := range listing.RemovedDirectories(entries, p.Entries) {
			missing[name] = backup.Entry{Name: name, Kind: backup.Directory}
		}
		for i := range p.Entries {
			if e := &p.Entries[i]; w.keepsMountedFile(e) {
				missing[e.Name] = *e
			}
		}
	}
	keys := map[backup.PageKey]bool{}
	err = w.spilled.pages(func(key, next backup.PageKey, entries []backup.Entry) error {
		keys[key] = true
		var self *backup.Entry
		if key == 0 {
			self = &w.self
		}
		p := page{key: key, fingerprint: w.fingerprint.Of(w.slice.task.Job.Compare, self, entries, next)}
		if !w.marked(key) || w.unchanged(ctx, &p) && !w.isBroken(key) {
			return nil
		}
		return w.eachOld(ctx, pageNames(w.path, []backup.PageKey{key}), func(_ string, p *backup.Page) error { note(p, entries); return nil })
	})
	if err != nil {
		return nil, err
	}
	err = w.eachOld(ctx, pageNames(w.path, w.marksWithout(keys)), func(_ string, p *backup.Page) error { note(p, nil); return nil })
	if err != nil {
		return nil, err
	}
	return missing, w.eachUnlisted(ctx, func(name string) { missing[name] = backup.Entry{Name: name, Kind: backup.Directory} })
}
