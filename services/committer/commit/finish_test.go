package commit

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/segment"
)

// The segments of a shard's snapshots, applied one after the other, are the
// pages of each: the store alone is enough (I7).
func TestSegmentsRebuildThePages(t *testing.T) {
	f := newFixture(t)
	s := f.service(f.idx, Options{})
	random := rand.New(rand.NewPCG(1, 2))
	rebuilt := map[backup.PageName]string{}
	for n := range 8 {
		snap := f.walked(func(slice *backup.SliceWalked) {
			slice.Counts.Files = 100
			slice.Pages = append(slice.Pages, pageOf("", fmt.Sprint("root ", n)))
			if n > 0 {
				gone := fmt.Sprint("d", random.IntN(6))
				slice.Removed = []string{gone}
				slice.Ended = []backup.PageName{{Path: "kept", Key: backup.PageKey(random.IntN(4) + 1)}}
			}
			for range 6 {
				path := fmt.Sprintf("d%d/sub%d", random.IntN(6), random.IntN(3))
				if len(slice.Removed) == 0 || !strings.HasPrefix(path, slice.Removed[0]) {
					slice.Pages = append(slice.Pages, pageOf(path, fmt.Sprint(path, n)))
				}
			}
			if n%2 == 0 {
				page := pageOf("kept", fmt.Sprint("kept ", n))
				page.Key = backup.PageKey(5 + random.IntN(3))
				slice.Pages = append(slice.Pages, page)
			}
			if n == 0 {
				for key := range 5 {
					page := pageOf("kept", fmt.Sprint("kept at first ", key))
					page.Key = backup.PageKey(key)
					slice.Pages = append(slice.Pages, page)
				}
			}
			slice.Pages = lastOfEach(slice.Pages)
		})
		if n == 4 { // one that fails leaves nothing behind
			f.must(f.idx.Fail(f.ctx, snap.ID, "test"))
			continue
		}
		f.must(s.finish(f.ctx, snap.ID))
		segments := f.segments(snap.ID)
		if len(segments) != 1 {
			t.Fatalf("snapshot %d has %d segments", n, len(segments))
		}
		for _, parts := range segments {
			f.replay(rebuilt, parts)
			for i, p := range parts {
				if p.Header.Snapshot != snap.ID.String() || p.Header.Shard != "/srv" || p.Header.Part != i || p.Header.Last != (i == len(parts)-1) || p.Header.Base != snap.Base {
					t.Errorf("header %+v", p.Header)
				}
			}
		}
		if want := f.pages(snap.ID); !maps.Equal(rebuilt, want) {
			t.Fatalf("after snapshot %d the segments give\n%v, the index has\n%v", n, rebuilt, want)
		}
	}
}

func lastOfEach(pages []backup.PageVersion) (list []backup.PageVersion) {
	seen := map[backup.PageName]bool{}
	for _, p := range pages {
		if name := (backup.PageName{Path: p.Path, Key: p.Key}); !seen[name] {
			seen[name] = true
			list = append(list, p)
		}
	}
	return list
}

// replay ends what the segment ends, and then adds what it adds: a page that
// was changed is among both.
func (f *fixture) replay(pages map[backup.PageName]string, parts []*segment.Part) {
	for _, ended := range []bool{true, false} {
		for _, p := range parts {
			for c, err := range p.Changes() {
				f.must(err)
				switch {
				case c.Ended != ended:
				case ended:
					delete(pages, backup.PageName{Path: c.Path, Key: c.Key})
				default:
					pages[backup.PageName{Path: c.Path, Key: c.Key}] = f.textOf(c.Listing)
				}
			}
		}
	}
}

// The segment is durable before the commit point: however its Put fails, the
// snapshot goes on running, and is committed with another segment.
func TestSegmentCannotBePut(t *testing.T) {
	for name, fault := range map[string]func(func() error) error{
		"lost":                   func(func() error) error { return errPower },
		"applied, then an error": func(put func() error) error { return errors.Join(put(), errPower) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			snap := f.walked(func(s *backup.SliceWalked) { s.Pages = []backup.PageVersion{pageOf("", "root")} })
			s := f.service(f.idx, Options{})
			f.store.bad = []func(func() error) error{fault}
			if err := s.finish(f.ctx, snap.ID); !errors.Is(err, errPower) {
				t.Fatalf("error %v", err)
			}
			if got := f.snapshot(snap.ID); got.State != backup.Running {
				t.Fatalf("the snapshot is %s", got.State)
			}
			f.must(s.finish(f.ctx, snap.ID))
			if got := f.snapshot(snap.ID); got.State != backup.Committed {
				t.Fatalf("the snapshot is %s", got.State)
			}
		})
	}
}

// The segment is in the store when the index commits, not after.
func TestSegmentComesBeforeTheCommit(t *testing.T) {
	f := newFixture(t)
	snap := f.walked(func(s *backup.SliceWalked) { s.Pages = []backup.PageVersion{pageOf("", "root")} })
	var atCommit int
	idx := &stepIndex{Index: f.idx, before: func(step string) error {
		if step == "commit" {
			atCommit = len(f.segments(snap.ID))
		}
		return nil
	}}
	f.must(f.service(idx, Options{}).finish(f.ctx, snap.ID))
	if atCommit != 1 {
		t.Errorf("%d segments are there at the commit", atCommit)
	}
}

func TestIncompleteSnapshotIsNotCommitted(t *testing.T) {
	f := newFixture(t)
	s := f.walked(func(s *backup.SliceWalked) { s.Children = [][]string{{"left"}} })
	f.must(f.service(f.idx, Options{}).finish(f.ctx, s.ID))
	if got := f.snapshot(s.ID); got.State != backup.Running {
		t.Errorf("the snapshot is %s", got.State)
	}
	if n := len(f.segments(s.ID)); n != 0 {
		t.Errorf("%d segments", n)
	}
}

// A shard with far fewer files fails, unless told otherwise (I11).
func TestShrinkGuard(t *testing.T) {
	for _, c := range []struct {
		before, now int64
		allow       bool
		want        backup.State
	}{
		{before: 1000, now: 1000, want: backup.Committed},
		{before: 1000, now: 500, want: backup.Committed},
		{before: 1000, now: 499, want: backup.Failed},
		{before: 1000, now: 499, allow: true, want: backup.Committed},
		{before: 1000, now: 0, want: backup.Failed},
		{before: 1000, now: 0, allow: true, want: backup.Committed},
		{before: 1, now: 0, want: backup.Failed},
		{before: 10, now: 1, want: backup.Committed}, // a few files
		{before: 12, now: 1, want: backup.Failed},
		{before: 0, now: 0, want: backup.Committed},
		{before: 0, now: 1000, want: backup.Committed},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			f := newFixture(t)
			ended := 0
			s := f.service(f.idx, Options{OnEnd: func(backup.SnapshotID) { ended++ }})
			first := f.walked(func(s *backup.SliceWalked) {
				s.Counts.Files = c.before
				s.Pages = []backup.PageVersion{pageOf("", "1")}
			})
			f.must(s.finish(f.ctx, first.ID))
			if got := f.snapshot(first.ID); got.State != backup.Committed {
				t.Fatalf("the first is %s: %s", got.State, got.Reason)
			}
			var err error
			second, err := f.idx.BeginSnapshot(f.ctx, f.shard.ID, backup.Snapshot{AllowShrink: c.allow}, first.Started)
			f.must(err)
			task := f.claimTask()
			slice := sliceOf(&task)
			slice.Counts.Files, slice.Pages = c.now, []backup.PageVersion{pageOf("", "2")}
			f.apply(index.Result{Slice: slice})
			f.must(s.finish(f.ctx, second.ID))
			got := f.snapshot(second.ID)
			if got.State != c.want || ended != 2 {
				t.Errorf("the second is %s (%s), want %s; %d have ended", got.State, got.Reason, c.want, ended)
			}
			if c.want == backup.Failed && !strings.Contains(got.Reason, "--allow-shrink") {
				t.Errorf("reason %q does not say how to insist", got.Reason)
			}
		})
	}
}
