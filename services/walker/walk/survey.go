package walk

import (
	"cmp"
	"context"
	"slices"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// Surveyed is what a walk finds, for a snapshot that is not made.
type Surveyed struct {
	Counts    backup.Counts
	ReadFiles int64 // with content that has to be read
	ReadBytes int64
	Failed    string // why the tree cannot be walked; "" if it can
}

// Survey walks a tree as for a snapshot, and returns what it finds. It writes nothing, and no
// service takes part. found, if not nil, is called with each part of the result, by one goroutine
// at a time. Directories that are left to walk stay in memory, because there are no child tasks.
func Survey(ctx context.Context, idx index.Walking, src source.Source, job backup.Job, o Options, found func(*backup.SliceWalked)) (Surveyed, error) {
	return New(nil, idx, src, flow.NewReporter(nil, o.Worker), o).survey(ctx, job, found)
}

// survey makes no other use of the Service possible: it replaces send.
func (s *Service) survey(ctx context.Context, job backup.Job, found func(*backup.SliceWalked)) (all Surveyed, err error) {
	open := []backup.WalkTask{{Job: job, ID: 1, Attempt: 1, Directories: []string{""}}}
	for len(open) > 0 && all.Failed == "" {
		task := open[len(open)-1]
		open = open[:len(open)-1]
		var children []backup.Child
		s.send = func(_ context.Context, m *backup.SliceWalked) error {
			children = append(children, m.Children...)
			if task.Generation == 0 && m.Last {
				// As for a snapshot, all further work is for the tree that the root task has found.
				job.Root, job.Source, job.Snapshots = m.Root, cmp.Or(m.Source, job.Source), ""
			}
			if found != nil {
				found(m)
			}
			return all.add(m)
		}
		t := s.begin(&task, nil)
		err := s.walk(ctx, t)
		t.end()
		if err != nil {
			return all, err
		}
		for _, c := range slices.Backward(children) {
			open = append(open, backup.WalkTask{
				Job: job, ID: task.ID + 1, Attempt: 1, Generation: task.Generation + 1, Directories: c.Directories, Mounts: c.Mounts,
			})
		}
	}
	return all, nil
}

// add adds a part of the result.
func (all *Surveyed) add(m *backup.SliceWalked) error {
	all.Counts.Add(m.Counts)
	all.Failed = cmp.Or(all.Failed, m.Failed)
	for i := range m.Batches {
		for _, v := range m.Batches[i].Pages {
			p, err := listing.DecodePage(v)
			if err != nil {
				return err
			}
			files, bytes := wanted(p.Entries)
			all.ReadFiles += int64(files)
			all.ReadBytes += bytes
		}
	}
	return nil
}
