package history

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// A Query says which entries are looked for.
type Query struct {
	// Name selects by the path of the directory and the name in it.
	Name func(dir, name string) bool
	// Entry selects versions by their attributes.
	Entry func(e *backup.Entry) bool
}

// maxFound is the maximum number of pages with names that were found, which are in memory. If there
// are more, all pages are read instead.
const maxFound = 200_000

// atOnce is of how many pages the versions are read before what they have is reported.
const atOnce = 256

// A Result is how a search went.
type Result struct {
	// Incomplete is why the names could not be relied upon, and all pages were read instead; nil:
	// they could.
	Incomplete error
}

// Find calls report with the versions of each path of a shard that q selects, in the snapshots
// given, the newest first. Paths come directory by directory. If pages could not be read, the error
// wraps backup.ErrCorrupt, and all others were reported.
func Find(ctx context.Context, x Index, shard backup.ShardID, snapshots Snapshots, q Query, report func([]Version) error) (Result, error) {
	if len(snapshots) == 0 {
		return Result{}, nil
	}
	f := &finder{reader: reader{index: x, shard: shard, snapshots: snapshots}, query: q, to: report}
	pages, many, err := f.named(ctx)
	result := Result{}
	switch {
	case errors.Is(err, index.ErrNamesIncomplete):
		result.Incomplete, many = err, true
	case err != nil:
		return result, err
	}
	if many {
		err = f.everywhere(ctx)
	} else {
		err = f.in(ctx, pages)
	}
	if err != nil {
		return result, err
	}
	return result, f.err()
}

type finder struct {
	reader
	query Query
	to    func([]Version) error
}

// named returns the pages with names that are looked for, by directory; many: there are too many.
func (f *finder) named(ctx context.Context) (pages map[string][]backup.PageKey, many bool, err error) {
	pages, n := map[string][]backup.PageKey{}, 0
	err = f.index.EachName(ctx, f.shard, func(page backup.PageName, names []string) error {
		if slices.Contains(pages[page.Path], page.Key) {
			return nil
		}
		for _, name := range names {
			if f.query.Name(page.Path, name) {
				pages[page.Path] = append(pages[page.Path], page.Key)
				if n++; n > maxFound {
					return errMany
				}
				break
			}
		}
		return nil
	})
	if errors.Is(err, errMany) {
		return nil, true, nil
	}
	return pages, false, err
}

var errMany = errors.New("too many pages")

// in reads the versions of pages, those of many directories at once.
func (f *finder) in(ctx context.Context, found map[string][]backup.PageKey) error {
	paths := slices.SortedFunc(maps.Keys(found), func(a, b string) int { return bytes.Compare(backup.PathKey(a), backup.PathKey(b)) })
	for len(paths) > 0 {
		var pages []backup.PageName
		n := 0
		for n < len(paths) && len(pages) < atOnce {
			slices.Sort(found[paths[n]])
			for _, key := range found[paths[n]] {
				pages = append(pages, backup.PageName{Path: paths[n], Key: key})
			}
			n++
		}
		paths = paths[n:]
		var dirs []*directory
		err := f.index.VersionsOf(ctx, f.shard, pages, func(v *index.PageSpan) error {
			if len(dirs) == 0 || dirs[len(dirs)-1].path != v.Path {
				dirs = append(dirs, &directory{path: v.Path, spans: map[string][]span{}})
			}
			return f.add(dirs[len(dirs)-1], v, f.query.Name)
		})
		if err == nil {
			err = f.report(ctx, dirs)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// everywhere reads all versions of all pages.
func (f *finder) everywhere(ctx context.Context) error {
	var dirs []*directory
	read := 0
	err := f.index.VersionsBelow(ctx, f.shard, "", false, func(v *index.PageSpan) error {
		if len(dirs) == 0 || dirs[len(dirs)-1].path != v.Path {
			if read >= atOnce {
				if err := f.report(ctx, dirs); err != nil {
					return err
				}
				dirs, read = dirs[:0], 0
			}
			dirs = append(dirs, &directory{path: v.Path, spans: map[string][]span{}})
		}
		read++
		return f.add(dirs[len(dirs)-1], v, f.query.Name)
	})
	if err != nil {
		return err
	}
	return f.report(ctx, dirs)
}

// report reports what was found in directories.
func (f *finder) report(ctx context.Context, dirs []*directory) error {
	if err := f.complete(ctx, dirs); err != nil {
		return err
	}
	for _, d := range dirs {
		for _, name := range slices.Sorted(maps.Keys(d.spans)) {
			versions := f.snapshots.versions(backup.Join(d.path, name), d.spans[name])
			versions = slices.DeleteFunc(versions, func(v Version) bool { return !f.query.Entry(v.Entry) })
			slices.Reverse(versions)
			if len(versions) == 0 {
				continue
			}
			if err := f.to(versions); err != nil {
				return err
			}
		}
	}
	return nil
}
