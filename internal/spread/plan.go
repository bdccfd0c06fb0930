package spread

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// A task ends at the first directory after it has this many entries, or files with this many bytes.
// The first tasks are small, so that a small tree is spread too. Later ones have a fixed part of
// what came before them, so that there are hundreds of tasks, and not tens of thousands.
const (
	fewestEntries = 512
	mostEntries   = 20_000
	leastBytes    = 64 << 20
	mostBytes     = 8 << 30
	part          = 64
)

// Plan returns the tasks that restore the directory at path. It reads the pages of the index once.
func Plan(ctx context.Context, c browse.Catalog, id backup.SnapshotID, path string) ([]index.RestoreTask, error) {
	tasks := []index.RestoreTask{{Kind: index.RestoreBegin}}
	current := index.RestoreTask{Kind: index.RestorePart, From: backup.PathKey(path)}
	var entries, bytes, before, beforeBytes int64 // of the current task, and of those before it
	last := path
	for v, err := range c.Pages(ctx, id, path) {
		if err != nil {
			return nil, err
		}
		full := entries >= min(max(before/part, fewestEntries), mostEntries) || bytes >= min(max(beforeBytes/part, leastBytes), mostBytes)
		if v.Path != last && full {
			current.To = backup.PathKey(v.Path)
			tasks = append(tasks, current)
			current = index.RestoreTask{Kind: index.RestorePart, From: current.To}
			before, beforeBytes = before+entries, beforeBytes+bytes
			entries, bytes = 0, 0
		}
		last = v.Path
		entries++
		page, err := listing.DecodePage(v)
		if err != nil {
			continue // the last task reports it
		}
		for i := range page.Entries {
			entries++
			if page.Entries[i].Kind == backup.File {
				bytes += page.Entries[i].Size
			}
		}
	}
	current.To = backup.PathKeyEnd(path)
	return append(tasks, current, index.RestoreTask{Kind: index.RestoreLast}), nil
}

// Cuts returns the path keys at which the parts of a restore begin, except the first.
func Cuts(ctx context.Context, x index.Restoring, id index.RestoreID) (cuts [][]byte, err error) {
	first := true
	err = eachTask(ctx, x, id, func(t *index.RestoreTask) error {
		if t.Kind == index.RestorePart && !first {
			cuts = append(cuts, t.From)
		}
		first = first && t.Kind != index.RestorePart
		return nil
	})
	return cuts, err
}

// tasksAtATime bounds the tasks that are read at a time; each may have a result.
const tasksAtATime = 64

func eachTask(ctx context.Context, x index.Restoring, id index.RestoreID, do func(*index.RestoreTask) error) error {
	for after := int64(0); ; {
		tasks, err := x.RestoreTasks(ctx, id, after, tasksAtATime)
		if err != nil {
			return err
		}
		for i := range tasks {
			after = tasks[i].Row
			if err := do(&tasks[i]); err != nil {
				return err
			}
		}
		if len(tasks) < tasksAtATime {
			return nil
		}
	}
}
