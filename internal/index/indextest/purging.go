package indextest

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// A tree is what a snapshot has: the state of each file, by path. Directories are those of paths.
type tree map[string]int

// purgedName is the path that is purged, and purgedText is in all names that must be gone.
const (
	purgedName = "dir/file-05-secret"
	purgedText = "file-05-secret"
)

// directoriesOf returns the directories of a tree, each with the names in it.
func directoriesOf(t tree) map[string][]string {
	all := map[string][]string{"": nil}
	for path := range t {
		for path != "" {
			dir, name := backup.Split(path)
			if !slices.Contains(all[dir], name) {
				all[dir] = append(all[dir], name)
			}
			path = dir
		}
	}
	for _, names := range all {
		slices.Sort(names)
	}
	return all
}

// pagesOf returns the pages of a tree: three entries each, with keys as walkers give them.
func pagesOf(t tree) (pages []backup.PageVersion) {
	const perPage = 3
	for dir, names := range directoriesOf(t) {
		var keys listing.Keys
		var page *backup.Page
		var all []*backup.Page
		for i, name := range names {
			if i%perPage == 0 {
				key := backup.PageKey(0)
				if i > 0 {
					key = keys.Next(name)
				}
				page = &backup.Page{Path: dir, Key: key}
				all = append(all, page)
			}
			state, file := t[backup.Join(dir, name)]
			e := backup.Entry{Name: name, Kind: backup.Directory, Inode: 7}
			if file {
				sum := blake3.Sum256(fmt.Append(nil, dir, name, state))
				e.Kind, e.Size = backup.File, int64(state)+1
				e.Content.Refs = []backup.Ref{{Chunk: backup.ChunkID(sum[:16]), Length: e.Size, Span: e.Size}}
			}
			page.Entries = append(page.Entries, e)
		}
		if len(all) == 0 {
			all = append(all, &backup.Page{Path: dir})
		}
		all[0].Self = &backup.Entry{Kind: backup.Directory, Inode: inodeOf(dir)}
		for i, page := range all {
			if i+1 < len(all) {
				page.Next = all[i+1].Key
			}
			data, err := listing.Encode(nil, page)
			if err != nil {
				panic(err) // a mistake in a test of this package
			}
			sum := blake3.Sum256(data)
			v := backup.PageVersion{Path: dir, Key: page.Key, Fingerprint: backup.Fingerprint(sum[:16]), Listing: data}
			if page.Key == 0 {
				v.Inode = inodeOf(dir)
			}
			pages = append(pages, v)
		}
	}
	return pages
}

// counts returns the files, directories and bytes of a tree.
func (t tree) counts() (c backup.Counts) {
	c.Directories = int64(len(directoriesOf(t)))
	for _, state := range t {
		c.Files, c.Bytes = c.Files+1, c.Bytes+int64(state)+1
	}
	return c
}

// commitTree makes a snapshot of a tree, given the one before.
func (f *fixture) commitTree(t, before tree) backup.Snapshot {
	f.Helper()
	s := f.walk(func(r *backup.SliceWalked) {
		old := map[backup.PageName][]byte{}
		for _, p := range pagesOf(before) {
			old[backup.PageName{Path: p.Path, Key: p.Key}] = p.Listing
		}
		r.Counts = t.counts()
		for _, p := range pagesOf(t) {
			name := backup.PageName{Path: p.Path, Key: p.Key}
			if !bytes.Equal(old[name], p.Listing) {
				r.Pages = append(r.Pages, p)
			}
			delete(old, name)
		}
		if before != nil {
			for name := range old {
				r.Ended = append(r.Ended, name)
			}
		}
	})
	f.commit(s)
	f.must(f.x.Recorded(f.ctx, s.ID))
	return f.snapshot(s.ID)
}

// without returns the tree without what is purged.
func (t tree) without() tree {
	rest := tree{}
	maps.Copy(rest, t)
	maps.DeleteFunc(rest, func(path string, _ int) bool { return path == purgedName || strings.HasPrefix(path, purgedName+"/") })
	return rest
}

// readTree returns the tree that the pages of a snapshot make, by the chains of its directories.
func (f *fixture) readTree(s backup.Snapshot) (tree, []string) {
	f.Helper()
	pages := map[backup.PageName]backup.Page{}
	for p, err := range f.x.Subtree(f.ctx, s.Shard.ID, s.Number, "") {
		f.must(err)
		page, err := listing.DecodePage(p)
		f.must(err)
		pages[backup.PageName{Path: p.Path, Key: p.Key}] = page
	}
	t, names := tree{}, []string{}
	var walk func(dir string)
	walk = func(dir string) {
		for key, more := backup.PageKey(0), true; more; {
			name := backup.PageName{Path: dir, Key: key}
			page, ok := pages[name]
			if !ok {
				f.Fatalf("snapshot %d lacks page %d of %q", s.Number, key, dir)
			}
			delete(pages, name)
			for _, e := range page.Entries {
				names = append(names, e.Name)
				if e.Kind == backup.Directory {
					walk(backup.Join(dir, e.Name))
					continue
				}
				t[backup.Join(dir, e.Name)] = int(e.Size) - 1
			}
			key = page.Next
			more = key != 0
		}
	}
	walk("")
	if len(pages) > 0 {
		f.Fatalf("snapshot %d has pages that belong to nothing: %v", s.Number, slices.Collect(maps.Keys(pages)))
	}
	return t, names
}

// randomTree changes a tree at random. The purged path is then a file, a directory, or absent.
func randomTree(r *rand.Rand, t tree) tree {
	t = t.without()
	for i := range 14 {
		path := fmt.Sprintf("dir/file-%02d", i)
		switch r.IntN(6) {
		case 0:
			delete(t, path)
		case 1, 2:
			t[path] = r.IntN(100)
		}
	}
	t["dir/kept"], t[fmt.Sprintf("other/%d", r.IntN(3))] = 1, r.IntN(5)
	switch r.IntN(4) {
	case 0, 1:
		t[purgedName] = r.IntN(3)
	case 2:
		t[purgedName+"/below"], t[purgedName+"/deep/"+purgedText+"-too"] = r.IntN(3), r.IntN(3)
	}
	return t
}

// Random histories: a purge removes a path from all snapshots, or from those since a time, and
// nothing else of them.
func testPurge(t *testing.T, fresh func(testing.TB) Database) {
	seeds := uint64(3) // the last one purges what is since a time
	if testtarget.Runs(testtarget.Often) {
		seeds = 12
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			f := newFixture(t, fresh)
			r := rand.New(rand.NewPCG(seed, 1))
			f.purgeHistory(r, seed%3 == 2)
		})
	}
}

func (f *fixture) purgeHistory(r *rand.Rand, since bool) {
	trees, snapshots := []tree{}, []backup.Snapshot{}
	last := tree(nil)
	for range 8 {
		next := randomTree(r, last)
		f.now = f.now.Add(time.Hour)
		snapshots = append(snapshots, f.commitTree(next, last))
		trees, last = append(trees, next), next
	}
	for _, i := range []int{1, 4} { // gone before the purge
		f.must(f.forget(snapshots[i]))
	}
	_, err := f.x.DropVersions(f.ctx, f.shard.ID)
	f.must(err)
	from := 0
	p := index.Purge{ID: backup.NewPackID(), Shard: f.shard.ID, Path: purgedName, By: "operator", Reason: "request 1"}
	if since {
		from = 1 + r.IntN(6)
		p.Since = snapshots[from].Started
	}
	before := f.dump()
	would, err := f.x.BeginPurge(f.ctx, p, true)
	if err != nil {
		f.wants(err, backup.ErrNotFound)
		return // no snapshot has it
	}
	if after := f.dump(); after != before {
		f.Fatal("a dry run changes something")
	}
	did, err := f.x.BeginPurge(f.ctx, p, false)
	f.must(err)
	removed := func(p index.Purged) (all []string) { // random keys of pages differ
		for i := range p.Snapshots {
			s := &p.Snapshots[i]
			all = append(all, fmt.Sprint(s.ID, s.Files, s.Directories, s.Bytes))
		}
		return append(all, fmt.Sprint(p.Total, p.Versions, p.Chunks))
	}
	if !slices.Equal(removed(would), removed(did)) {
		f.Fatalf("it would remove %q, and removes %q", removed(would), removed(did))
	}
	for i, s := range snapshots {
		if i == 1 || i == 4 {
			continue
		}
		want := trees[i]
		if i >= from {
			want = want.without()
		}
		f.wantTree(f.snapshot(s.ID), want)
	}
	if _, complete := f.wantNames(); !complete {
		f.collect(true)
		f.wantNames()
	}
	if from == 0 {
		f.wantNothingOf(purgedText)
		f.wantNoName(purgedText)
		f.wants2(f.x.BeginPurge(f.ctx, p, true))
	}
	f.wantJournals(did.Purge)
	f.goOn(r, last, did.Purge)
}

// wants2 wants a purge of the same shard to be refused while the other is not complete.
func (f *fixture) wants2(_ index.Purged, err error) {
	f.Helper()
	f.wants(err, backup.ErrExists)
}

// wantTree checks what a snapshot consists of, its digest and its counts.
func (f *fixture) wantTree(s backup.Snapshot, want tree) {
	f.Helper()
	got, names := f.readTree(s)
	if !maps.Equal(got, want) {
		f.Fatalf("snapshot %d has %v, want %v", s.Number, got, want)
	}
	for i, name := range names {
		if slices.Index(names, name) != i && name == purgedText {
			f.Fatalf("snapshot %d has %s twice", s.Number, name)
		}
	}
	var sum backup.PageSet
	f.addChanges(&sum, f.x.AllPages(f.ctx, s.ID))
	if sum != s.Pages {
		f.Fatalf("snapshot %d consists of %+v, and says %+v", s.Number, sum, s.Pages)
	}
	if c := want.counts(); s.Counts.Files != c.Files || s.Counts.Bytes != c.Bytes {
		f.Fatalf("snapshot %d counts %d files of %d bytes, want %d of %d", s.Number, s.Counts.Files, s.Counts.Bytes, c.Files, c.Bytes)
	}
}

// wantNothingOf checks that no version, patch or base has a name, also among those that no snapshot
// needs, and no key that is its hash.
func (f *fixture) wantNothingOf(name string) {
	f.Helper()
	f.wantRows(fmt.Sprintf("pages WHERE page = %d", listing.Key(name)), 0)
	rows, err := f.db.SQL.QueryContext(f.ctx, "SELECT p.path_key, p.listing, b.listing FROM pages p LEFT JOIN pages b ON b.shard = p.shard AND b.directory = p.directory AND b.page = p.page AND b.first_snapshot = p.base")
	f.must(err)
	defer rows.Close()
	for rows.Next() {
		var key, stored, base []byte
		f.must(rows.Scan(&key, &stored, &base))
		if bytes.Contains(key, []byte(name)) {
			f.Fatalf("a version of %q", key)
		}
		for _, data := range [][]byte{stored, base} {
			if listing.IsPatch(data) && base == nil || !listing.IsPatch(data) && data != nil {
				whole, err := listing.Whole(data, nil)
				f.must(err)
				plain, err := listing.Plain(whole)
				f.must(err)
				if bytes.Contains(plain, []byte(name)) {
					f.Fatalf("a listing of %q has it", key)
				}
			}
		}
		whole, err := listing.Whole(stored, base)
		f.must(err)
		page, err := listing.Decode(whole)
		f.must(err)
		if slices.ContainsFunc(page.Entries, func(e backup.Entry) bool { return strings.Contains(e.Name, name) }) {
			f.Fatalf("a version of %q lists it", key)
		}
	}
	f.must(rows.Err())
}

// wantJournals checks that the stale records are those of the snapshots that the purge concerns,
// that the differences between them are right, and that a chain of amended ones needs no forgotten
// one.
func (f *fixture) wantJournals(p index.Purge) {
	f.Helper()
	journals, err := f.x.Journals(f.ctx, f.shard.ID)
	f.must(err)
	var base *index.SnapshotJournal
	for i := range journals {
		j := &journals[i]
		if j.Stale != (j.Number >= p.From) {
			f.Fatalf("snapshot %d is stale: %t, purged from %d", j.Number, j.Stale, p.From)
		}
		if base != nil {
			set := base.Pages
			f.addChanges(&set, f.x.Added(f.ctx, j.ID, base.ID))
			f.addChanges(&set, f.x.Ended(f.ctx, j.ID, base.ID))
			if set != j.Pages {
				f.Fatalf("snapshot %d since %d: %+v, want %+v", j.Number, base.Number, set, j.Pages)
			}
		}
		if j.Stale {
			a := index.Amendment{ID: j.ID, Sequence: j.Sequence + 1, Segment: backup.Segment{Attempt: backup.NewPackID(), Parts: 1, Checkpoint: base == nil}}
			if base != nil {
				a.Base = base.ID
			}
			f.must(f.x.Amend(f.ctx, index.Term{}, a))
		}
		base = j
	}
	amended, err := f.x.Amendments(f.ctx)
	f.must(err)
	locks, err := f.x.Locks(f.ctx)
	f.must(err)
	now, err := f.x.Journals(f.ctx, p.Shard)
	f.must(err)
	for _, j := range now {
		if a := locks.Amendments[j.ID]; a.Sequence != j.Sequence || j.Sequence > 0 && a.Base != j.Base {
			f.Fatalf("snapshot %d has amendment %+v, want %+v", j.Number, a, j)
		}
	}
	for _, j := range journals {
		if j.Number >= p.From && amended[j.ID] != 1 {
			f.Fatalf("snapshot %d has amendment %d", j.Number, amended[j.ID])
		}
	}
	forgotten, err := f.x.Forgotten(f.ctx)
	f.must(err)
	for _, g := range forgotten {
		if g.Needed && p.From == 1 {
			f.Fatalf("forgotten snapshot %d is needed", g.Number)
		}
	}
}

// goOn ends the purge, and makes another snapshot, which takes the path again.
func (f *fixture) goOn(r *rand.Rand, last tree, p index.Purge) {
	f.Helper()
	chunks, err := f.x.PurgeChunks(f.ctx, p.ID, backup.ChunkID{}, 1000)
	f.must(err)
	if len(chunks) == 0 {
		f.Fatal("no chunks")
	}
	remains, err := f.x.PurgeRemains(f.ctx, p.ID)
	f.must(err)
	if remains != 0 {
		f.Fatalf("%d rows remain", remains)
	}
	pending, err := f.x.Purges(f.ctx)
	f.must(err)
	if len(pending) != 1 || pending[0].Path != purgedName || pending[0].From != p.From || pending[0].Total != p.Total {
		f.Fatalf("pending: %+v, want %+v", pending, p)
	}
	f.must(f.x.HidePurge(f.ctx, p.ID))
	f.must(f.x.EndPurge(f.ctx, p.ID, "done"))
	f.must(f.x.EndPurge(f.ctx, p.ID, "done"))
	for _, table := range []string{"purges", "purge_chunks", "purge_objects", "interrupted_pages"} {
		f.wantRows(table, 0)
	}
	for e, err := range f.x.Log(f.ctx, time.Time{}) {
		f.must(err)
		if strings.Contains(e.Subject+e.Reason, purgedText) {
			f.Fatalf("the log has the name: %+v", e)
		}
	}
	next := randomTree(r, last)
	next[purgedName] = 5
	next = maps.Clone(next)
	maps.DeleteFunc(next, func(path string, _ int) bool { return strings.HasPrefix(path, purgedName+"/") })
	s := f.walkTree(next)
	f.commit(s)
	f.wantTree(f.snapshot(s.ID), next)
}

// walkTree walks a tree as a walker does that finds no page unchanged.
func (f *fixture) walkTree(t tree) backup.Snapshot {
	f.Helper()
	return f.walk(func(r *backup.SliceWalked) {
		job := f.running()
		r.Counts, r.Pages = t.counts(), pagesOf(t)
		has := map[backup.PageName]bool{}
		for _, p := range r.Pages {
			has[backup.PageName{Path: p.Path, Key: p.Key}] = true
		}
		for p, err := range f.x.Subtree(f.ctx, f.shard.ID, job.Base, "") {
			f.must(err)
			if name := (backup.PageName{Path: p.Path, Key: p.Key}); !has[name] {
				r.Ended = append(r.Ended, name)
			}
		}
	})
}

// running returns the running snapshot of the shard.
func (f *fixture) running() backup.Snapshot {
	f.Helper()
	found, err := f.x.Snapshots(f.ctx, index.SnapshotFilter{States: []backup.State{backup.Running}})
	f.must(err)
	return found[0]
}

// dump returns the content of the tables that a purge changes.
func (f *fixture) dump() string {
	f.Helper()
	var b strings.Builder
	for _, query := range []string{
		"SELECT coalesce(sum(length(listing) + first_snapshot * 1000 + coalesce(last_snapshot, 0) * 7), 0) FROM pages",
		"SELECT coalesce(sum(files + bytes * 3 + pages), 0) FROM snapshots", "SELECT count(*) FROM purges", "SELECT count(*) FROM log",
		"SELECT count(*) FROM amendments", "SELECT count(*) FROM purge_chunks",
	} {
		var n int64
		f.must(f.db.SQL.QueryRowContext(f.ctx, query).Scan(&n))
		fmt.Fprintln(&b, n)
	}
	return b.String()
}
