package check

import (
	"cmp"
	"context"
	"hash/maphash"
	"runtime"
	"slices"

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

// versionsAtOnce is how many versions a worker gets at a time.
const versionsAtOnce = 64

// eachVersion calls do with the needed versions of a shard's pages, on several CPUs, each with its
// number.
func (c *checker) eachVersion(ctx context.Context, s *shard, do func(worker int, v *index.Version) error) (n int64, err error) {
	g, working := errgroup.WithContext(ctx)
	batches := make(chan []index.Version, 1)
	for worker := range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			for batch := range batches {
				for i := range batch {
					if err := do(worker, &batch[i]); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	send := func(batch []index.Version) error {
		select {
		case batches <- batch:
			return nil
		case <-working.Done():
			return context.Cause(working)
		}
	}
	var batch []index.Version
	for v, readErr := range c.Index.Versions(ctx, s.ID, s.numbers) {
		if err = readErr; err != nil {
			break
		}
		n++
		v.Listing = slices.Clone(v.Listing)
		if batch = append(batch, v); len(batch) == versionsAtOnce {
			if err = send(batch); err != nil {
				break
			}
			batch = nil
		}
	}
	if err == nil && len(batch) > 0 {
		err = send(batch)
	}
	close(batches)
	return n, cmp.Or(g.Wait(), err)
}

// run scans the shard.
func (s *scan) run(ctx context.Context) error {
	tallies := make([]tally, runtime.GOMAXPROCS(0))
	for i := range tallies {
		tallies[i] = make(tally, len(s.snapshots)+1)
	}
	n, err := s.eachVersion(ctx, s.shard, func(worker int, v *index.Version) error {
		return s.version(v, tallies[worker])
	})
	s.versions = n
	s.sums = make(tally, len(s.snapshots)+1)
	for _, t := range tallies {
		for i := range t {
			s.sums[i].add(&t[i])
		}
	}
	return err
}

// version checks one version.
func (s *scan) version(v *index.Version, t tally) error {
	if s.structure {
		from, to := s.positions(v.First, v.Last)
		page, err := decode(v)
		if err != nil {
			t.count(from, to, v.Digest, sum{damaged: 1})
			s.damage(v, err)
			return nil // what it refers to is not known
		}
		t.count(from, to, v.Digest, measure(v, &page))
	}
	if s.part == nil {
		return nil
	}
	return s.part.references(v)
}

// decode decodes a version, and compares it with its digest and its row.
func decode(v *index.Version) (backup.Page, error) {
	path, err := backup.PathOfKey(v.PathKey)
	if err != nil {
		return backup.Page{}, err
	}
	if listing.DirectoryID(path) != v.Directory {
		err = errOtherDirectory
	}
	row := backup.PageVersion{Path: path, Key: v.Key, Fingerprint: v.Fingerprint, Inode: v.Inode, Listing: v.Listing, Digest: v.Digest}
	if err == nil && listing.Digest(&row) != v.Digest { // also if the digest is zero
		err = errDigest
	}
	if err != nil {
		return backup.Page{Path: path}, err
	}
	return listing.DecodePage(row)
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
