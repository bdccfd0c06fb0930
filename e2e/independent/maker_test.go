//go:build independent && linux

package independent

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/journal"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/dirstore"
)

// A maker makes a store of trees, with the packages that know the formats and
// nothing else: no index, no services.
type maker struct {
	t        *testing.T
	dir      string // where store and keys are
	store    *dirstore.Store
	identity string // path
	keys     journal.Keys
	worker   seal.WorkerKey
	hasher   *chunk.Hasher
	cutter   *chunk.Cutter

	chunks  map[backup.ChunkID]bool // in a pack already
	pending []pack.Chunk            // and its plaintext
	raw     [][]byte

	shard   backup.ShardKey
	last    *backup.Snapshot // the base of the next
	pages   map[backup.PageName]backup.PageVersion
	content backup.PageSet
	// edit changes an entry after the tree was looked at.
	edit func(path string, e *backup.Entry)
	// drop leaves a page out of the segment and of the digest.
	drop func(v *backup.PageVersion) bool
}

// memory is the index that repo.Init wants.
type memory struct{ row backup.Repository }

func (*memory) Migrate(context.Context) (from, to int64, err error) { return 0, 0, nil }
func (m *memory) CreateRepository(_ context.Context, r backup.Repository) error {
	m.row = r
	return nil
}
func (m *memory) Repository(context.Context) (backup.Repository, error) {
	if m.row.Version == 0 {
		return m.row, backup.ErrNoRepository
	}
	return m.row, nil
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newMaker(t *testing.T) *maker {
	t.Helper()
	dir := t.TempDir()
	s, err := dirstore.Create(filepath.Join(dir, "store"))
	check(t, err)
	t.Cleanup(func() { s.Close() })
	made, err := repo.Init(t.Context(), s, &memory{}, repo.Options{
		CommitterKeyPath: filepath.Join(dir, "committer.key"), WorkerKeyPath: filepath.Join(dir, "worker.key"), IdentityPath: filepath.Join(dir, "identity.txt"),
		Chunker: chunk.DefaultCutter, Codec: "zstd-1", Now: time.Now(),
	})
	check(t, err)
	m := &maker{
		t: t, dir: dir, store: s, identity: made.IdentityPath, chunks: map[backup.ChunkID]bool{}, shard: backup.NewShardKey(),
		pages: map[backup.PageName]backup.PageVersion{}, edit: func(string, *backup.Entry) {}, drop: func(*backup.PageVersion) bool { return false },
	}
	m.worker, err = repo.ReadWorkerKey(made.WorkerKeyPath, made.Repository.ID)
	check(t, err)
	committer, err := repo.ReadCommitterKey(made.CommitterKeyPath, made.Repository.ID)
	check(t, err)
	sealer, err := seal.NewSealer(m.worker.Recipients)
	check(t, err)
	m.keys = journal.Keys{Repository: made.Repository.ID, Sealer: sealer, Signing: committer.Signing}
	m.hasher = chunk.NewHasher(m.worker.Dedup)
	m.cutter, err = chunk.NewCutter(chunk.DefaultCutter, m.worker.Dedup)
	check(t, err)
	return m
}

func (m *maker) path() string { return filepath.Join(m.dir, "store") }

// addChunk names a chunk, and notes it for the next pack if it is new.
func (m *maker) addChunk(data []byte) backup.Ref {
	hash := m.hasher.Sum(data)
	if !m.chunks[hash.ID()] {
		m.chunks[hash.ID()] = true
		m.pending = append(m.pending, pack.Chunk{Hash: hash, Length: uint32(len(data))})
		m.raw = append(m.raw, bytes.Clone(data))
	}
	return backup.Ref{Chunk: hash.ID(), Length: int64(len(data)), Span: int64(len(data))}
}

// putPack stores the chunks that are noted, some to a frame, as one pack, and
// returns its id and the lengths of its frames.
func (m *maker) putPack(snapshot backup.SnapshotID) (backup.PackID, []uint32) {
	id := backup.NewPackID()
	w, err := pack.NewWriter(pack.KindData, m.keys.Repository, id, m.keys.Sealer, nil)
	check(m.t, err)
	for n := 0; len(m.pending) > 0; n++ {
		compress, err := pack.NewCompressor([]string{"zstd-1", "s2", "none"}[n%3])
		check(m.t, err)
		var f pack.Frame
		var raw []byte
		for len(m.pending) > 0 && (len(raw) == 0 || len(raw)+len(m.raw[0]) <= 64<<10) {
			c := m.pending[0]
			c.Offset = uint32(len(raw))
			f.Chunks, raw = append(f.Chunks, c), append(raw, m.raw[0]...)
			m.pending, m.raw = m.pending[1:], m.raw[1:]
		}
		f.RawLength = len(raw)
		f.Body, f.Codec = compress.Compress(nil, raw)
		_, err = w.Add(f)
		check(m.t, err)
	}
	data, err := w.Finish()
	check(m.t, err)
	check(m.t, m.store.Put(m.t.Context(), store.PackName(snapshot, id), data))
	return id, w.FrameBytes()
}

// listRefs is small, so that a file of some chunks has lists of lists.
const listRefs, inlineRefs, inlineXattrBytes = 3, 2, 100

// readFile cuts a file's extents into chunks.
func (m *maker) readFile(path string, size int64) backup.Content {
	f, err := os.Open(path)
	check(m.t, err)
	defer f.Close()
	var refs []backup.Ref
	at := int64(0)
	for {
		start, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if err != nil {
			break // ENXIO: the rest is a hole
		}
		end, err := unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
		check(m.t, err)
		data, err := io.ReadAll(io.NewSectionReader(f, start, end-start))
		check(m.t, err)
		hole := start - at
		for len(data) > 0 {
			n := len(data)
			if size > chunk.WholeFileBytes {
				n = m.cutter.Cut(data[:len(data):len(data)], true)
			}
			ref := m.addChunk(data[:n])
			ref.Hole, hole, data = hole, 0, data[n:]
			refs = append(refs, ref)
		}
		at = end
	}
	return m.lists(backup.Content{Refs: refs})
}

// lists stores refs as list chunks until few are left.
func (m *maker) lists(c backup.Content) backup.Content {
	for len(c.Refs) > inlineRefs {
		var up []backup.Ref
		for part := range slices.Chunk(c.Refs, listRefs) {
			span := int64(0)
			for _, r := range part {
				span += r.Hole + r.Span
			}
			ref := m.addChunk(listing.EncodeRefs(nil, backup.Content{Depth: c.Depth, Refs: part}))
			ref.Span = span
			up = append(up, ref)
		}
		c = backup.Content{Depth: c.Depth + 1, Refs: up}
	}
	return c
}

// look returns an entry with all that is to be stored of it.
func (m *maker) look(full, path, name string) backup.Entry {
	var st unix.Statx_t
	check(m.t, unix.Statx(unix.AT_FDCWD, full, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st))
	at := func(t unix.StatxTimestamp) backup.Time { return backup.Time{Sec: t.Sec, Nsec: t.Nsec} }
	e := backup.Entry{
		Name: name, Kind: backup.KindOfMode(uint32(st.Mode)), Mode: uint32(st.Mode) & 0o7777, UID: st.Uid, GID: st.Gid, Nlink: st.Nlink, Inode: st.Ino,
		Mtime: at(st.Mtime), Ctime: at(st.Ctime), Btime: at(st.Btime),
	}
	switch e.Kind {
	case backup.File:
		e.Size = int64(st.Size)
		e.Content = m.readFile(full, e.Size)
	case backup.Symlink:
		target, err := os.Readlink(full)
		check(m.t, err)
		e.Target = target
	case backup.CharDev, backup.BlockDev:
		e.Rdev = unix.Mkdev(st.Rdev_major, st.Rdev_minor)
	case backup.Directory, backup.FIFO, backup.Socket:
	}
	e.Xattrs = xattrs(m.t, full)
	bytes := 0
	for _, x := range e.Xattrs {
		bytes += len(x.Value)
	}
	if bytes > inlineXattrBytes {
		e.XattrChunk, e.Xattrs = m.addChunk(listing.EncodeXattrs(nil, e.Xattrs)), nil
	}
	m.edit(path, &e)
	return e
}

func xattrs(t *testing.T, full string) (found []backup.Xattr) {
	list := make([]byte, 64<<10)
	n, err := unix.Llistxattr(full, list)
	check(t, err)
	for name := range bytes.SplitSeq(bytes.TrimSuffix(list[:n], []byte{0}), []byte{0}) {
		if len(name) == 0 {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(full, string(name), value)
		check(t, err)
		found = append(found, backup.Xattr{Name: string(name), Value: value[:n]})
	}
	slices.SortFunc(found, func(a, b backup.Xattr) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return found
}

// walk makes the pages of a directory and of all below it.
func (m *maker) walk(root, path string, pages map[backup.PageName]backup.PageVersion) {
	full := filepath.Join(root, path)
	self := m.look(full, path, "")
	self.Name = ""
	names, err := os.ReadDir(full)
	check(m.t, err)
	var entries []backup.Entry
	for _, d := range names {
		child := backup.Join(path, d.Name())
		entries = append(entries, m.look(filepath.Join(root, child), child, d.Name()))
		if d.IsDir() {
			m.walk(root, child, pages)
		}
	}
	entries = listing.Sort(entries)
	f := listing.NewFingerprinter()
	for key, first := backup.PageKey(0), &self; ; {
		n := listing.Cut(entries, false)
		p := backup.Page{Path: path, Key: key, Self: first, Entries: entries[:n]}
		if entries = entries[n:]; len(entries) > 0 {
			p.Next = listing.Key(entries[0].Name)
		}
		v := backup.PageVersion{Path: path, Key: key, Fingerprint: f.Of(0, p.Self, p.Entries, p.Next)}
		if first != nil {
			v.Inode = self.Inode
		}
		v.Listing, err = listing.Encode(nil, &p)
		check(m.t, err)
		pages[backup.PageName{Path: path, Key: key}] = v
		if p.Next == 0 {
			return
		}
		key, first = p.Next, nil
	}
}

// backup makes a snapshot of a tree, on the base of the one before.
func (m *maker) backup(root string, checkpoint bool) *backup.Snapshot {
	s := &backup.Snapshot{
		ID: backup.NewSnapshotID(), Number: 1, State: backup.Committed, Filer: backup.Filer{Name: "filer"}, Started: time.Now(),
		Shard: backup.Shard{Name: root, Key: m.shard, Source: "posix://" + root}, Source: "posix://" + root,
	}
	if m.last != nil {
		s.Number, s.Base, s.BaseID = m.last.Number+1, m.last.Number, m.last.ID
	}
	pages := map[backup.PageName]backup.PageVersion{}
	m.walk(root, "", pages)
	if len(m.pending) > 0 {
		m.putPack(s.ID)
	}
	base := m.content
	if checkpoint {
		base = backup.PageSet{}
	}
	changes := m.changes(pages, checkpoint)
	segment, err := journal.WriteSegment(m.keys, s, checkpoint, base, func(yield func(backup.PageChange, error) bool) {
		for _, c := range changes {
			if !yield(c, nil) {
				return
			}
		}
	}, func(name string, data []byte) error { return m.store.Put(m.t.Context(), name, data) })
	check(m.t, err)
	s.Pages, s.Segment = segment.Content, backup.Segment{Attempt: segment.Attempt, Parts: segment.Parts, Checkpoint: checkpoint}
	m.content, m.pages, m.last = segment.Content, pages, s
	m.record(s)
	return s
}

// changes are those from the snapshot before to pages: added first, then ended.
func (m *maker) changes(pages map[backup.PageName]backup.PageVersion, checkpoint bool) (changes []backup.PageChange) {
	var ended []backup.PageChange
	for name, v := range pages {
		old, was := m.pages[name]
		if m.drop(&v) {
			delete(pages, name)
			continue
		}
		if was && !checkpoint && bytes.Equal(old.Listing, v.Listing) && old.Fingerprint == v.Fingerprint {
			continue
		}
		change := backup.PageChange{}
		if was && !checkpoint { // it becomes a patch
			plain, err := listing.Plain(v.Listing)
			check(m.t, err)
			v.Listing, change.Replaces = plain, old.Listing
			pages[name] = v
		}
		change.PageVersion, change.Digest = v, listing.Digest(&v)
		changes = append(changes, change)
	}
	for name, old := range m.pages {
		v, is := pages[name]
		if checkpoint || is && bytes.Equal(old.Listing, v.Listing) && old.Fingerprint == v.Fingerprint {
			continue
		}
		ended = append(ended, backup.PageChange{Ended: true, Digest: listing.Digest(&old), PageVersion: backup.PageVersion{Path: name.Path, Key: name.Key}})
	}
	return append(changes, ended...)
}

// record writes the commit record.
func (m *maker) record(s *backup.Snapshot) {
	problems := func(yield func(backup.Problem, error) bool) {
		yield(backup.Problem{Path: "caf\xe9", Op: "open", Err: "no"}, nil)
	}
	data, err := journal.EncodeCommit(m.keys, s.ID, journal.NewCommit(s, time.Now()), problems)
	check(m.t, err)
	check(m.t, m.store.Put(m.t.Context(), store.CommitName(s.ID), data))
}

// amend replaces the records of a snapshot by an amended one. base is the snapshot on which its
// segment is based, or nil.
func (m *maker) amend(s, base *backup.Snapshot, amendment int) {
	record := journal.NewCommit(s, time.Now())
	record.Amend(amendment, base)
	data, err := journal.EncodeCommit(m.keys, s.ID, record, func(func(backup.Problem, error) bool) {})
	check(m.t, err)
	check(m.t, m.store.Put(m.t.Context(), store.AmendedName(s.ID, amendment), data))
}

// thin replaces each pack object by one of two packs in a row: the pack without
// the frames that the second has a copy of, and that copy.
func (m *maker) thin(s *backup.Snapshot) {
	opener := m.opener()
	for o, err := range m.store.List(m.t.Context(), store.PacksPrefix+s.ID.String()+"/") {
		check(m.t, err)
		data, err := m.store.Get(m.t.Context(), o.Name, pack.MaxBytes)
		check(m.t, err)
		r, err := pack.OpenBytes(data, m.keys.Repository, backup.PackID(data[28:44]), opener)
		check(m.t, err)
		var lengths []uint32
		moved := func(frame int) bool { return frame%2 == 1 }
		for n, f := range r.Frames() {
			lengths = append(lengths, uint32(f.SealedLength))
			if !moved(n) {
				continue
			}
			raw, err := r.DecodeFrame(nil, uint32(n), data[f.Offset:][:f.SealedLength], m.hasher)
			check(m.t, err)
			for _, c := range f.Chunks {
				m.pending = append(m.pending, pack.Chunk{Hash: c.Hash, Length: c.Length})
				m.raw = append(m.raw, raw[c.Offset:][:c.Length])
			}
		}
		if len(m.pending) == 0 {
			continue
		}
		thinned, err := pack.Thin(nil, data, lengths, func(frame int) bool { return !moved(frame) })
		check(m.t, err)
		id, _ := m.putPack(s.ID)
		copied, err := m.store.Get(m.t.Context(), store.PackName(s.ID, id), pack.MaxBytes)
		check(m.t, err)
		check(m.t, m.store.Put(m.t.Context(), store.PackName(s.ID, backup.NewPackID()), slices.Concat(thinned, copied)))
		check(m.t, m.store.Delete(m.t.Context(), store.PackName(s.ID, id)))
		check(m.t, m.store.Delete(m.t.Context(), o.Name))
	}
}

func (m *maker) opener() *seal.Opener {
	text, err := os.ReadFile(m.identity)
	check(m.t, err)
	opener, err := seal.NewOpener(text)
	check(m.t, err)
	return opener
}

// noise is n bytes that do not compress and are not twice in a tree.
func noise(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return string(b)
}

// text is n bytes that compress.
func text(n int) string {
	var b []byte
	for i := uint64(0); len(b) < n; i++ {
		b = append(binary.AppendUvarint(b, i/7), "a line of text\n"...)
	}
	return string(b[:n])
}

func addedPage(v backup.PageVersion) backup.PageChange {
	return backup.PageChange{PageVersion: v, Digest: listing.Digest(&v)}
}
