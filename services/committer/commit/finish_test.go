package commit

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/indextest"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/listing"
)

// The segments of a shard's snapshots, applied one after the other, yield the pages of each: the
// store alone is sufficient (I7).
func TestSegmentsRebuildThePages(t *testing.T) {
	f := newFixture(t)
	s := f.service(f.idx, Options{})
	random := rand.New(rand.NewPCG(1, 2))
	rebuilt, patched := map[backup.PageName][]byte{}, 0
	for n := range 8 {
		snap := f.walked(func(slice *backup.SliceWalked) {
			slice.Counts.Files = 100
			slice.Pages = append(slice.Pages, pageOf("", fmt.Sprint("root ", n)), pageOfMany("many", n))
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
		if n == 4 { // a failed snapshot leaves nothing behind
			f.must(f.idx.Fail(f.ctx, snap.ID, "test", time.Now()))
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
				h := &p.Header
				patched += h.Version - 1
				if h.Snapshot.ID != snap.ID.String() || h.Snapshot.Shard != "/srv" || h.Part != i || h.Last != (i == len(parts)-1) || h.Checkpoint != (snap.Base == 0) ||
					(h.Snapshot.Base == nil) != (snap.Base == 0) || snap.Base > 0 && h.Snapshot.Base.ID != snap.BaseID.String() {
					t.Errorf("header %+v", h)
				}
			}
		}
		texts := map[backup.PageName]string{}
		for name, data := range rebuilt {
			texts[name] = f.textOf(data)
		}
		if want := f.pages(snap.ID); !maps.Equal(texts, want) {
			t.Fatalf("after snapshot %d the segments give\n%v, the index has\n%v", n, texts, want)
		}
		f.wantPageSet(snap.ID, segments)
	}
	if patched != 6 {
		t.Errorf("%d segments have patches, want those of all snapshots but the first and the failed one", patched)
	}
}

// pageOfMany returns a page of 100 symlinks, one of which differs in each version.
func pageOfMany(path string, version int) backup.PageVersion {
	page := &backup.Page{Self: &backup.Entry{Kind: backup.Directory}}
	for i := range 100 {
		target := fmt.Sprint("target of ", i*i)
		if i == version {
			target = "changed"
		}
		page.Entries = append(page.Entries, backup.Entry{Name: fmt.Sprintf("%04d", i), Kind: backup.Symlink, Target: target})
	}
	data, err := listing.Encode(nil, page)
	if err != nil {
		panic(err) // the test has made an invalid page
	}
	return backup.PageVersion{Path: path, Fingerprint: backup.Fingerprint{byte(version)}, Listing: data}
}

// wantPageSet checks that index and segment agree on the pages of a snapshot.
func (f *fixture) wantPageSet(id backup.SnapshotID, segments map[string][]*journal.SegmentPart) {
	f.Helper()
	var want backup.PageSet
	for p, err := range f.idx.Pages(f.ctx, id, "") {
		f.must(err)
		want.Add(listing.Digest(&p))
	}
	snap := f.snapshot(id)
	parts := segments[snap.Segment.Attempt.String()]
	if len(parts) != snap.Segment.Parts {
		f.Fatalf("%d parts of the segment that holds, want %d", len(parts), snap.Segment.Parts)
	}
	said := value(parts[len(parts)-1].Header.Content.PageSet())(f)
	if snap.Pages != want || said != want {
		f.Errorf("the index says %v, the segment %v; the pages are %v", snap.Pages, said, want)
	}
}

// A snapshot that changed nothing has no segment: its record is sufficient.
func TestUnchangedSnapshotHasNoSegment(t *testing.T) {
	f := newFixture(t)
	s := f.service(f.idx, Options{})
	first := f.walked(func(s *backup.SliceWalked) { s.Pages = []backup.PageVersion{pageOf("", "root")} })
	f.must(s.finish(f.ctx, first.ID))
	second := f.walked(func(*backup.SliceWalked) {})
	f.must(s.finish(f.ctx, second.ID))
	got := f.snapshot(second.ID)
	if got.State != backup.Committed || got.Segment.Parts != 0 || len(f.segments(second.ID)) != 0 || got.Pages != f.snapshot(first.ID).Pages {
		t.Errorf("%+v, %d segments", got, len(f.segments(second.ID)))
	}
	if c := f.commitRecord(second.ID); c.Segment != nil || c.Content == nil || c.Snapshot.Base.ID != first.ID.String() {
		t.Errorf("record %+v", c)
	}
}

// largePage returns a page whose listing has about sizeBytes bytes.
func largePage(path string, n, sizeBytes int) backup.PageVersion {
	const each = 32 << 10
	random := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)})
	page := &backup.Page{Self: &backup.Entry{Kind: backup.Directory}}
	for i := range sizeBytes / each {
		target := make([]byte, each)
		_, _ = random.Read(target)
		page.Entries = append(page.Entries, backup.Entry{Name: fmt.Sprintf("%04d", i), Kind: backup.Symlink, Target: string(target)})
	}
	data, err := listing.Encode(nil, page)
	if err != nil {
		panic(err) // the test has made an invalid page
	}
	return backup.PageVersion{Path: path, Fingerprint: backup.Fingerprint{1}, Listing: data}
}

// Once the segments since the last checkpoint have become larger than it, and large enough, the
// next snapshot has all pages in its segment, so that older ones can be deleted.
func TestCheckpoint(t *testing.T) {
	const pageBytes = 256 << 10
	f := newFixture(t)
	s := f.service(f.idx, Options{})
	var checkpoints []int
	for n := range 14 {
		snap := f.walked(func(s *backup.SliceWalked) {
			if n == 0 {
				for i := range 2 {
					s.Pages = append(s.Pages, largePage(fmt.Sprint("stays", i), 1000+i, pageBytes))
				}
			}
			s.Pages = append(s.Pages, largePage("changes", n, pageBytes))
		})
		f.must(s.finish(f.ctx, snap.ID))
		segments := f.segments(snap.ID)
		f.wantPageSet(snap.ID, segments)
		if !f.snapshot(snap.ID).Segment.Checkpoint {
			continue
		}
		checkpoints = append(checkpoints, n)
		added := 0
		for _, parts := range segments {
			for _, p := range parts {
				for c, err := range p.Changes(nil) {
					f.must(err)
					if c.Ended {
						t.Error("a checkpoint ends a page")
					}
					added++
				}
			}
		}
		if added != 3 {
			t.Errorf("the checkpoint of snapshot %d has %d pages, want 3", n, added)
		}
	}
	// Four segments of slightly more than 256 KiB exceed 1 MiB, and the checkpoint's 768 KiB.
	if want := []int{0, 5, 10}; !slices.Equal(checkpoints, want) {
		t.Errorf("checkpoints are %v, want %v", checkpoints, want)
	}
}

// The chain of a shard that changes little, or not at all, is cut too: more rarely where
// checkpoints are large.
func TestLongChainsAreCut(t *testing.T) {
	for _, test := range []struct {
		number               backup.SnapshotNumber
		checkpoint, segments int64
		needed               bool
		base                 backup.SnapshotNumber
	}{
		{1, 0, 0, true, 0},
		{2, 5000, 300, false, 1},
		{127, 5000, 0, false, 126},
		{128, 5000, 0, true, 127},
		{256, 5000, 0, true, 255},
		{128, 10 << 20, 0, false, 127},
		{1408, 10 << 20, 0, true, 1407},
		{7, 5000, 1<<20 + 1, true, 6},
		{7, 5 << 20, 1<<20 + 1, false, 6},
	} {
		last := index.LastCommits{CheckpointBytes: test.checkpoint, SegmentBytes: test.segments}
		if got := needsCheckpoint(&backup.Snapshot{Number: test.number, Base: test.base}, &last); got != test.needed {
			t.Errorf("number %d, after a checkpoint of %d bytes and segments of %d: %t", test.number, test.checkpoint, test.segments, got)
		}
	}
}

// If pages are missing in the index, a checkpoint would record that the shard never had them. So
// the snapshot fails instead, and names what is missing. An operator can force a checkpoint of the
// remaining pages.
func TestCheckpointOfMissingPages(t *testing.T) {
	const one = " WHERE rowid IN (SELECT rowid FROM pages WHERE first_snapshot = 1 AND last_snapshot IS NULL LIMIT 1)"
	for name, test := range map[string]struct {
		damage, why string
		insist      bool
	}{
		"a page is missing": {"DELETE FROM pages" + one, `the index has 2 pages of shard "/srv", and should have 3`, true},
		"a page is another": {"UPDATE pages SET inode = inode + 1" + one, "differs from what was stored", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			s := f.service(f.idx, Options{})
			made := func(n int, request backup.Snapshot) backup.Snapshot {
				snap := value(f.idx.BeginSnapshot(f.ctx, f.shard.ID, request, time.Now()))(f)
				task := f.claimTask()
				slice := indextest.SliceOf(task)
				slice.Counts.Files, slice.Pages = 1, []backup.PageVersion{largePage("changes", n, 300<<10)}
				if n == 0 {
					slice.Pages = append(slice.Pages, pageOf("stays", "s"), pageOf("too", "t"))
				}
				f.apply(index.Result{Slice: slice})
				f.must(s.finish(f.ctx, snap.ID))
				return f.snapshot(snap.ID)
			}
			for n := range 3 {
				if got := made(n, backup.Snapshot{}); got.State != backup.Committed {
					t.Fatalf("snapshot %d is %s (%s)", n, got.State, got.Reason)
				}
			}
			f.damage(test.damage)
			last := backup.Snapshot{State: backup.Committed}
			// It shows at the next checkpoint.
			for n := 3; n < 8 && last.State == backup.Committed; n++ {
				last = made(n, backup.Snapshot{})
			}
			if last.State != backup.Failed || !strings.Contains(last.Reason, test.why) {
				t.Errorf("%s (%s), want %q", last.State, last.Reason, test.why)
			}
			insisted := made(8, backup.Snapshot{AllowShrink: true})
			if (insisted.State == backup.Committed) != test.insist {
				t.Errorf("with --allow-shrink: %s (%s)", insisted.State, insisted.Reason)
			}
			if test.insist {
				f.wantPageSet(insisted.ID, f.segments(insisted.ID))
				if next := made(9, backup.Snapshot{}); next.State != backup.Committed {
					t.Errorf("the next is %s (%s)", next.State, next.Reason)
				}
			}
		})
	}
}

// damage changes the index directly in the database.
func (f *fixture) damage(statement string) {
	f.Helper()
	db := value(sql.Open("sqlite", filepath.Join(f.dir, "index.db")))(f)
	defer db.Close()
	result := value(db.ExecContext(f.ctx, statement))(f)
	if n := value(result.RowsAffected())(f); n != 1 {
		f.Fatalf("%s: %d rows", statement, n)
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

// replay removes the pages that the segment ends, and then adds those that it adds: a page that was
// changed is among both.
func (f *fixture) replay(pages map[backup.PageName][]byte, parts []*journal.SegmentPart) {
	before := maps.Clone(pages)
	base := func(path string, key backup.PageKey) ([]byte, error) {
		return before[backup.PageName{Path: path, Key: key}], nil
	}
	for _, ended := range []bool{true, false} {
		for _, p := range parts {
			for c, err := range p.Changes(base) {
				f.must(err)
				switch {
				case c.Ended != ended:
				case ended:
					delete(pages, backup.PageName{Path: c.Path, Key: c.Key})
				default:
					pages[backup.PageName{Path: c.Path, Key: c.Key}] = c.Listing
				}
			}
		}
	}
}

// The segment is durable before the commit point: however its Put fails, the snapshot keeps
// running, and is committed with another segment.
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
			// Another committer can try at once: it does not wait for the lease.
			f.must(f.service(f.idx, Options{}).finish(f.ctx, snap.ID))
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
	s := f.walked(func(s *backup.SliceWalked) { s.Children = []backup.Child{{Directories: []string{"left"}}} })
	f.must(f.service(f.idx, Options{}).finish(f.ctx, s.ID))
	if got := f.snapshot(s.ID); got.State != backup.Running {
		t.Errorf("the snapshot is %s", got.State)
	}
	if n := len(f.segments(s.ID)); n != 0 {
		t.Errorf("%d segments", n)
	}
}
