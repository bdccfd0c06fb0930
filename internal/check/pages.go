package check

import (
	"bytes"
	"cmp"
	"context"
	"hash/maphash"
	"runtime"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// A shard is a shard with the snapshots that need its pages.
type shard struct {
	index.ShardStatus
	numbers   []backup.SnapshotNumber // of all needed snapshots, or of those in Options.Only
	snapshots []backup.Snapshot       // of these, the committed ones that can be read, by number
}

// loadShards reads the shards with the snapshots to check.
func (c *checker) loadShards(ctx context.Context) error {
	shards, err := c.Index.ListShards(ctx, index.ShardFilter{Retired: true})
	if err != nil {
		return err
	}
	needed, err := c.Index.Needed(ctx, nil)
	if err != nil {
		return err
	}
	for i := range shards {
		s := &shard{ShardStatus: shards[i], numbers: needed[shards[i].ID]}
		if err := c.loadSnapshots(ctx, s); err != nil {
			return err
		}
		if len(s.numbers) > 0 {
			c.shards = append(c.shards, s)
			c.report.Shards++
			c.report.Snapshots += len(s.snapshots)
		}
	}
	return nil
}

func (c *checker) loadSnapshots(ctx context.Context, s *shard) error {
	if c.Only != nil {
		var of []backup.SnapshotNumber
		for i := range c.Only {
			if c.Only[i].Shard.ID == s.ID && slices.Contains(s.numbers, c.Only[i].Number) {
				of = append(of, c.Only[i].Number)
			}
		}
		slices.Sort(of)
		s.numbers = of
	}
	if len(s.numbers) == 0 {
		return nil
	}
	found, err := c.Index.Snapshots(ctx, index.SnapshotFilter{Filer: s.Filer.Name, Shard: s.Name, States: []backup.State{backup.Committed}})
	if err != nil {
		return err
	}
	s.snapshots = slices.DeleteFunc(found, func(f backup.Snapshot) bool {
		_, is := slices.BinarySearch(s.numbers, f.Number)
		return f.Shard.ID != s.ID || !is
	})
	slices.SortFunc(s.snapshots, func(a, b backup.Snapshot) int { return cmp.Compare(a.Number, b.Number) })
	return nil
}

// positions returns the range of the snapshots that have a version.
func (s *shard) positions(first, last backup.SnapshotNumber) (from, to int) {
	by := func(f backup.Snapshot, n backup.SnapshotNumber) int { return cmp.Compare(f.Number, n) }
	from, _ = slices.BinarySearchFunc(s.snapshots, first, by)
	to, found := slices.BinarySearchFunc(s.snapshots, last, by)
	if found {
		to++
	}
	return from, max(from, to)
}

// A sum is what one snapshot has, or a difference of that.
type sum struct {
	pages                     backup.PageSet
	files, directories, bytes int64
	// chain is the sum of the hashes of all pages, less those of the pages that are first in their
	// directory or that another page names as its next: 0 if no page of a directory is missing.
	chain uint64
	// below is the sum of the hashes of all directories, less those of the directories that are
	// listed in another one: 0 but for the root if no directory is missing.
	below   uint64
	damaged int // versions that cannot be decoded
}

func (s *sum) add(d *sum) {
	pages := s.pages.Pages + d.pages.Pages
	s.pages.Add(backup.PageDigest(d.pages.Sum))
	s.pages.Pages = pages
	s.files, s.directories, s.bytes = s.files+d.files, s.directories+d.directories, s.bytes+d.bytes
	s.chain, s.below, s.damaged = s.chain+d.chain, s.below+d.below, s.damaged+d.damaged
}

// A tally has, for each snapshot of a shard, the difference from the one before it. So a version
// takes the same time however many snapshots have it.
type tally []sum

func (t tally) count(from, to int, digest backup.PageDigest, d sum) {
	t[from].pages.Add(digest)
	t[to].pages.Remove(digest)
	t[from].add(&d)
	t[to].add(&sum{
		files: -d.files, directories: -d.directories, bytes: -d.bytes,
		chain: -d.chain, below: -d.below, damaged: -d.damaged,
	})
}

var seed = maphash.MakeSeed()

type pageName struct {
	directory backup.DirectoryID
	key       backup.PageKey
}

func hashPage(directory backup.DirectoryID, key backup.PageKey) uint64 {
	return maphash.Comparable(seed, pageName{directory, key})
}

// measure returns what a page adds to each snapshot that has it.
func measure(v *index.Version, page *backup.Page) (d sum) {
	d.chain = hashPage(v.Directory, v.Key)
	if page.Next != 0 {
		d.chain -= hashPage(v.Directory, page.Next)
	}
	if v.Key == 0 {
		d.chain -= hashPage(v.Directory, 0)
		d.below += maphash.String(seed, page.Path)
		if page.Self == nil || !page.Self.HadVanished() { // it is not counted
			d.directories++
		}
	}
	for i := range page.Entries {
		e := &page.Entries[i]
		if e.Kind == backup.Directory {
			d.below -= maphash.String(seed, backup.Join(page.Path, e.Name))
			continue
		}
		d.files++
		if e.Kind == backup.File {
			d.bytes += min(e.Size, backup.MaxCount)
		}
	}
	return d
}

// A scan reads the versions of one shard's pages.
type scan struct {
	*checker
	*shard
	structure bool  // compare pages, counts and directories
	part      *part // of the chunks whose places are looked up; nil: none
	sums      tally
	damaged   []*Finding
	versions  int64
}

// maxShares bounds the shares of a shard that are read at the same time, each by one connection.
const maxShares = 4

func shares() int { return min(runtime.GOMAXPROCS(0), maxShares) }

// eachVersion calls do with the needed versions of a shard's pages, concurrently for each share,
// and returns their number. The listing is valid until do returns.
func (c *checker) eachVersion(ctx context.Context, s *shard, do func(share int, v *index.Version) error) (int64, error) {
	g, ctx := errgroup.WithContext(ctx)
	var all atomic.Int64
	of := shares()
	for share := range of {
		g.Go(func() error {
			n := int64(0)
			defer func() { all.Add(n) }()
			for v, err := range c.Index.Versions(ctx, s.ID, s.numbers, index.Share{N: share, Of: of}) {
				if err != nil {
					return err
				}
				n++
				if err := do(share, &v); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	return all.Load(), err
}

// run scans the shard.
func (s *scan) run(ctx context.Context) error {
	workers := make([]worker, shares())
	for i := range workers {
		workers[i].tally = make(tally, len(s.snapshots)+1)
	}
	n, err := s.eachVersion(ctx, s.shard, func(share int, v *index.Version) error {
		s.version(v, &workers[share])
		return nil
	})
	s.versions = n
	s.sums = make(tally, len(s.snapshots)+1)
	for _, w := range workers {
		for i := range w.tally {
			s.sums[i].add(&w.tally[i])
		}
	}
	return err
}

// A worker checks the versions of one share. It has what the versions of a page have in common.
type worker struct {
	tally
	decoder listing.Decoder
	pathKey []byte
	path    string
	id      backup.DirectoryID // of the path

	chunks, before listing.Chunks // of this version, and of the one before it
}

// version checks one version.
func (s *scan) version(v *index.Version, w *worker) {
	if s.structure {
		from, to := s.positions(v.First, v.Last)
		page, err := w.decode(v)
		if err != nil {
			w.count(from, to, v.Digest, sum{damaged: 1})
			s.damage(v, err)
			return // what it refers to is not known
		}
		w.count(from, to, v.Digest, measure(v, &page))
	}
	if s.part != nil {
		s.part.references(v, w)
	}
}

// decode decodes a version, and compares it with its digest and its row. The page is valid until
// the next one.
func (w *worker) decode(v *index.Version) (backup.Page, error) {
	if len(w.pathKey) == 0 || !bytes.Equal(w.pathKey, v.PathKey) {
		path, err := backup.PathOfKey(v.PathKey)
		if err != nil {
			return backup.Page{}, err
		}
		w.pathKey, w.path, w.id = append(w.pathKey[:0], v.PathKey...), path, listing.DirectoryID(path)
	}
	row := backup.PageVersion{Path: w.path, Key: v.Key, Fingerprint: v.Fingerprint, Inode: v.Inode, Listing: v.Listing, Digest: v.Digest}
	switch {
	case w.id != v.Directory:
		return backup.Page{Path: w.path}, errOtherDirectory
	case listing.Digest(&row) != v.Digest: // also if the digest is zero
		return backup.Page{Path: w.path}, errDigest
	}
	return w.decoder.DecodeProven(row)
}

// damage notes a damaged version.
func (s *scan) damage(v *index.Version, err error) {
	path, unknown := backup.PathOfKey(v.PathKey)
	if unknown != nil {
		path = string(v.PathKey)
	}
	f := s.finding(Page, v.First, v.Last)
	f.Path, f.Text = path, err.Error()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.damaged) < maxFindings {
		s.damaged = append(s.damaged, f)
	}
}

// finding returns a finding of some snapshots of the shard.
func (s *shard) finding(kind Kind, first, last backup.SnapshotNumber) *Finding {
	f := &Finding{Kind: kind, Filer: s.Filer.Name, Shard: s.Name, ShardID: s.ID}
	f.First, f.Last = s.among(first, last)
	return f
}

// among returns the first and the last of the needed snapshots from first to last.
func (s *shard) among(first, last backup.SnapshotNumber) (from, to backup.SnapshotNumber) {
	for _, n := range s.numbers {
		if n >= first && n <= last {
			if from == 0 {
				from = n
			}
			to = n
		}
	}
	return from, to
}
