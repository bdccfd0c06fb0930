package commit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
)

// A snapshot that looks as if an export was not mounted fails, unless a request permits it. It is
// compared with the last good snapshot (I11, I13).
func TestShrinkGuard(t *testing.T) {
	const mib = 1 << 20
	type counts = backup.Counts
	for name, c := range map[string]struct {
		before *counts // nil: there is no good snapshot
		now    counts
		why    string // empty: it is committed
	}{
		"as many":                           {&counts{Files: 1000}, counts{Files: 1000}, ""},
		"half":                              {&counts{Files: 1000}, counts{Files: 500}, ""},
		"fewer than half":                   {&counts{Files: 1000}, counts{Files: 499}, "far fewer files than its last good snapshot: 499, after 1000 in number 1"},
		"none":                              {&counts{Files: 1000}, counts{}, "far fewer files"},
		"none of one":                       {&counts{Files: 1}, counts{}, "far fewer files"},
		"a few files":                       {&counts{Files: 10}, counts{Files: 1}, ""},
		"not a few files":                   {&counts{Files: 12}, counts{Files: 1}, "far fewer files"},
		"none of none":                      {&counts{Directories: 3}, counts{Directories: 1}, ""},
		"more":                              {&counts{Files: 1}, counts{Files: 1000}, ""},
		"a tenth of the bytes":              {&counts{Files: 9, Bytes: 20 * mib}, counts{Files: 9, Bytes: 2 * mib}, ""},
		"fewer bytes than that":             {&counts{Files: 9, Bytes: 20 * mib}, counts{Files: 9, Bytes: 2*mib - 1}, "far fewer bytes than its last good snapshot: 2097151, after 20971520"},
		"all truncated":                     {&counts{Files: 9, Bytes: 20 * mib}, counts{Files: 9}, "far fewer bytes"},
		"a few bytes":                       {&counts{Files: 9, Bytes: mib - 1}, counts{Files: 9}, ""},
		"no few bytes":                      {&counts{Files: 9, Bytes: mib}, counts{Files: 9}, "far fewer bytes"},
		"first, with files":                 {nil, counts{Files: 1, Directories: 1}, ""},
		"first, with an empty root":         {nil, counts{Directories: 1}, "the shard is empty, and it has no earlier good snapshot"},
		"first, without a file":             {nil, counts{Directories: 2}, ""},
		"first, all gone":                   {nil, counts{Directories: 9, Vanished: 1}, "1 of 1 files and directories were gone"},
		"first, most gone":                  {nil, counts{Files: 9, Vanished: 10}, "10 of 19 files and directories were gone"},
		"first, as many gone":               {nil, counts{Files: 10, Vanished: 10}, ""},
		"first, few gone":                   {nil, counts{Files: 1, Vanished: 9}, ""},
		"most gone":                         {&counts{Files: 1000}, counts{Files: 500, Vanished: 501}, "501 of 1001"},
		"few gone, where there are no more": {&counts{Directories: 3}, counts{Directories: 3, Vanished: 9}, ""},
		"all gone":                          {&counts{Files: 9}, counts{Vanished: 9}, "far fewer files"},
		"carried forward counts as there":   {&counts{Files: 1000}, counts{Files: 1000, Carried: 1000}, ""},
	} {
		for _, allow := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/allow=%v", name, allow), func(t *testing.T) {
				f := newFixture(t)
				ended := 0
				s := f.service(f.idx, Options{OnEnd: func(backup.SnapshotID) { ended++ }})
				made := func(counts backup.Counts, request backup.Snapshot) backup.Snapshot {
					snap := value(f.idx.BeginSnapshot(f.ctx, f.shard.ID, request, time.Now()))(f)
					task := f.claimTask()
					slice := indextest.SliceOf(task)
					slice.Counts, slice.Pages = counts, []backup.PageVersion{pageOf("", fmt.Sprint(snap.Number))}
					f.apply(index.Result{Slice: slice})
					f.must(s.finish(f.ctx, snap.ID))
					return f.snapshot(snap.ID)
				}
				want := 1
				if c.before != nil {
					if got := made(*c.before, backup.Snapshot{AllowShrink: true}); got.State != backup.Committed {
						t.Fatalf("the first is %s: %s", got.State, got.Reason)
					}
					want++
				}
				got := made(c.now, backup.Snapshot{AllowShrink: allow})
				state := backup.Committed
				if c.why != "" && !allow {
					state = backup.Failed
				}
				if got.State != state || ended != want {
					t.Errorf("%s (%s), want %s; %d have ended", got.State, got.Reason, state, ended)
				}
				if state == backup.Failed && (!strings.Contains(got.Reason, c.why) || !strings.Contains(got.Reason, "--allow-shrink")) {
					t.Errorf("reason %q, want %q and how to insist", got.Reason, c.why)
				}
			})
		}
	}
}

// A snapshot that failed its guard is not what the next is compared with.
func TestGuardGoesByTheLastGoodSnapshot(t *testing.T) {
	f := newFixture(t)
	s := f.service(f.idx, Options{})
	for n, files := range []int64{1000, 100, 100, 60, 600} {
		snap := f.walked(func(s *backup.SliceWalked) {
			s.Counts.Files, s.Pages = files, []backup.PageVersion{pageOf("", fmt.Sprint(n))}
		})
		f.must(s.finish(f.ctx, snap.ID))
		want := backup.Failed
		if files >= 500 {
			want = backup.Committed
		}
		if got := f.snapshot(snap.ID); got.State != want {
			t.Errorf("of %d files: %s (%s)", files, got.State, got.Reason)
		}
	}
}

// A snapshot that an operator has marked as bad is not what the next is compared with either, so
// that a loss does not become the norm.
func TestGuardPassesOverBadSnapshots(t *testing.T) {
	f := newFixture(t)
	s := f.service(f.idx, Options{})
	made := func(files int64, request backup.Snapshot) backup.Snapshot {
		snap := value(f.idx.BeginSnapshot(f.ctx, f.shard.ID, request, time.Now()))(f)
		task := f.claimTask()
		slice := indextest.SliceOf(task)
		slice.Counts, slice.Pages = backup.Counts{Files: files}, []backup.PageVersion{pageOf("", fmt.Sprint(snap.Number))}
		f.apply(index.Result{Slice: slice})
		f.must(s.finish(f.ctx, snap.ID))
		return f.snapshot(snap.ID)
	}
	made(1000, backup.Snapshot{})
	shrunk := made(100, backup.Snapshot{AllowShrink: true})
	f.must(f.idx.SetBad(f.ctx, shrunk.ID, "tester", "half of it was not mounted"))
	if got := made(100, backup.Snapshot{}); got.State != backup.Failed || !strings.Contains(got.Reason, "100, after 1000 in number 1") {
		t.Errorf("as small as the bad one: %s (%s), want failed, compared with number 1", got.State, got.Reason)
	}
	if got := made(990, backup.Snapshot{}); got.State != backup.Committed {
		t.Errorf("as large as the good one: %s (%s)", got.State, got.Reason)
	}
	f.must(f.idx.SetBad(f.ctx, shrunk.ID, "tester", ""))
	if got := made(900, backup.Snapshot{}); got.State != backup.Committed {
		t.Errorf("the mark of an older one was taken back: %s (%s)", got.State, got.Reason)
	}
}
