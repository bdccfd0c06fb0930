package walk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// A visitor holds the buffers for listing one directory, reused for the next. It belongs to one
// goroutine.
type visitor struct {
	entries     []backup.Entry
	pages       []page
	keys        []backup.PageKey // of all of a directory's pages
	fingerprint *listing.Fingerprinter
	encode      listing.Encoder
}

// keepEntries is the largest directory buffer, in entries, that is kept for the next directory.
const keepEntries = 64 << 10

// maxFailed is how many failed entries of one directory are reported one by one; with more, the
// directory counts as unreadable.
const maxFailed = 10_000

var (
	errTooManyFailed = errors.New("too many entries that cannot be looked at")
	errPathTooLong   = fmt.Errorf("a subdirectory's path would have more than %d bytes", backup.MaxPathBytes)
)

func newVisitor() *visitor {
	return &visitor{fingerprint: listing.NewFingerprinter()}
}

// A page is one of a directory's pages that differs from the last snapshot.
type page struct {
	key, next   backup.PageKey
	self        *backup.Entry // on page 0
	entries     []backup.Entry
	fingerprint backup.Fingerprint // as it will be stored: zero if the page must be looked at again
}

// A visit is one directory of a slice while it is processed.
type visit struct {
	*visitor
	slice *slice
	path  string
	dir   source.Directory
	self  backup.Entry
	marks []index.PageMark

	counts   backup.Counts
	problems []backup.Problem
	failed   []string // entries that exist, but could not be read with stat
	// The error of one of them, if the cause may affect more than one entry.
	blamed error
	broken []backup.PageName // of the last snapshot: damaged
	// Subdirectories among failed whose content is already carried forward.
	carried  []string
	total    int           // entries listed
	excluded bool          // a marker among the entries excludes the directory's content
	spilled  *spill        // the runs of a directory too large for memory
	held     int           // entries that svc.held counts
	answers  time.Duration // time that the source took for counts.StatCalls
	latency  time.Duration // mean time of a stat
}

// visit lists one directory, compares its pages with the last snapshot, and adds the differences to
// the result. It returns the subdirectories to walk.
func (v *visitor) visit(ctx context.Context, s *slice, path string) (subdirectories []string, entries int, err error) {
	marks, err := s.marks.of(ctx, path)
	if err != nil {
		return nil, 0, err
	}
	w, err := v.look(ctx, s, path, marks)
	if errors.Is(err, source.ErrStale) { // it may still exist
		w.close()
		w, err = v.look(ctx, s, path, marks)
	}
	defer w.close()
	if err != nil {
		return nil, 0, w.unread(ctx, err)
	}
	w.latency = w.answers / time.Duration(w.counts.StatCalls)
	if err := w.complete(ctx); err != nil {
		return nil, 0, err
	}
	if err := w.recognize(ctx); err != nil {
		return nil, 0, err
	}
	if w.spilled != nil {
		subdirectories, err = w.storeSpilled(ctx)
		return subdirectories, w.total, err
	}
	unchanged := w.counts.FilesUnchanged
	w.cut()
	gone := w.endedKeys()
	old, err := w.oldState(ctx, gone)
	if err != nil {
		return nil, 0, err
	}
	kept, err := w.keepMounts(ctx, &old)
	if err != nil {
		return nil, 0, err
	}
	if kept { // the entries have changed
		w.pages, w.keys, w.counts.FilesUnchanged = w.pages[:0], w.keys[:0], unchanged
		w.cut()
		gone = w.endedKeys()
		if old, err = w.oldState(ctx, gone); err != nil {
			return nil, 0, err
		}
	}
	subdirectories = w.subdirectories(nil, w.entries) // may report some that cannot be walked
	carried, err := w.store(ctx, &old, gone)
	if err != nil || carried {
		return nil, 0, err
	}
	return subdirectories, w.total, nil
}

// look opens and lists a directory. With an error, the visit shows how far it came.
func (v *visitor) look(ctx context.Context, s *slice, path string, marks []index.PageMark) (*visit, error) {
	w := &visit{visitor: v, slice: s, path: path, marks: marks}
	asked := s.hold.ask()
	dir, err := s.tree.OpenDirectory(ctx, path)
	w.answers = s.hold.answer(asked)
	if err != nil {
		return w, err
	}
	w.dir, w.self = dir, dir.Self()
	w.counts.Directories, w.counts.StatCalls = 1, 1
	err = w.list(ctx)
	return w, err
}

// unread settles a directory that could not be opened or listed.
func (w *visit) unread(ctx context.Context, err error) error {
	u := unread{path: w.path, op: "open", from: w.path, known: len(w.marks) > 0}
	if w.dir == nil { // only its name is known, which its parent lists
		u.self = backup.Entry{Kind: backup.Directory, Flags: backup.AttributesUnknown}
		return w.slice.settle(ctx, &u, err)
	}
	u.op, u.self = "list", w.self
	var oldErr error
	if u.from, oldErr = w.oldPath(ctx); oldErr != nil {
		return oldErr
	}
	if w.self.Btime.IsZero() {
		u.from = w.path // an inode number alone does not prove that it is the same directory
	}
	return w.slice.settle(ctx, &u, err)
}

// subdirectories appends the paths of the directories among entries to dst.
func (w *visit) subdirectories(dst []string, entries []backup.Entry) []string {
	for i := range entries {
		e := &entries[i]
		if e.Kind != backup.Directory || slices.Contains(w.carried, e.Name) {
			continue
		}
		path := backup.Join(w.path, e.Name)
		if len(path) > backup.MaxPathBytes {
			w.problem("", "open", errPathTooLong)
			continue
		}
		dst = append(dst, path)
	}
	return dst
}

// close releases what the directory held.
func (w *visit) close() {
	if w.dir != nil {
		_ = w.dir.Close() // it was only read
	}
	if w.spilled != nil {
		w.spilled.close()
	}
	w.hold(0)
	v := w.visitor
	if cap(v.entries) > keepEntries {
		v.entries = nil
	}
	clear(v.entries)
	clear(v.pages)
	v.entries, v.pages, v.keys = v.entries[:0], v.pages[:0], v.keys[:0]
}

// list reads the directory, without excluded entries. If the directory is too large for memory,
// sorted runs are left in w.spilled, and the last entries in memory.
func (w *visit) list(ctx context.Context) error {
	w.entries = w.entries[:0]
	w.flagRacy(&w.self)
	if w.slice.match.OneFileSystem() && (w.self.Flags&backup.Boundary != 0 || w.self.Device != w.slice.tree.RootDevice()) {
		return nil // a mount point is kept, empty
	}
	if w.self.Flags&backup.Boundary != 0 {
		w.slice.mounts.add(w.path)
	}
	for !w.excluded {
		from := len(w.entries)
		asked := w.slice.hold.ask()
		entries, stats, err := w.dir.Read(ctx, w.entries, w.notStated)
		w.answers += w.slice.hold.answer(asked)
		w.entries = entries
		w.counts.StatCalls += int64(stats)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.blame(ctx); err != nil {
			return err
		}
		if len(w.failed) > maxFailed {
			return errTooManyFailed
		}
		if w.path == "" && w.slice.snapshotDir != "" {
			w.dropSnapshotDir(from)
		}
		if !w.slice.match.Empty() {
			w.selectFrom(from)
		}
		if w.isLarge() {
			if err := w.spill(); err != nil {
				return err
			}
		}
	}
	w.dropAll()
	return nil
}

// notStated records an entry that vanished or could not be read with stat. An entry that is
// excluded in any case may have failed for just that reason, and is ignored.
func (w *visit) notStated(name, op string, err error) {
	path := backup.Join(w.path, name)
	if m := w.slice.match; m.HasPatterns() && m.Excluded(path, false) && m.Excluded(path, true) {
		return
	}
	if errors.Is(err, fs.ErrNotExist) {
		w.counts.Vanished++
		return
	}
	w.problem(name, op, err)
	w.failed = append(w.failed, name)
	if source.IsTransient(err) || source.MayBeAway(err) && !source.IsTransient(w.blamed) {
		w.blamed = err
	}
}

// blame returns nil if the entries that could not be read with stat are the cause themselves, and
// not the file server as a whole or this machine.
func (w *visit) blame(ctx context.Context) error {
	err := w.blamed
	w.blamed = nil
	switch {
	case err == nil:
		return nil
	case source.IsTransient(err):
		return err
	case source.MayBeAway(err):
		return w.slice.hold.believe(ctx, w.slice.tree, nil)
	}
	return nil
}

// complete turns the listing into what the snapshot will have: sorted, with the last good copy of
// entries that could not be read with stat.
func (w *visit) complete(ctx context.Context) error {
	if len(w.failed) > 0 {
		if err := w.carryForward(ctx); err != nil {
			return err
		}
	}
	if w.spilled != nil {
		return w.spill()
	}
	w.admit()
	return nil
}

// admit sorts the entries in memory, flags racy ones and counts them.
func (w *visit) admit() {
	w.entries = listing.Sort(w.entries)
	w.total += len(w.entries)
	for i := range w.entries {
		e := &w.entries[i]
		if e.Kind == backup.Directory {
			continue
		}
		w.flagRacy(e)
		w.counts.Files++
		w.counts.AddBytes(e.Size)
	}
}

// dropAll makes the directory an empty one without failures.
func (w *visit) dropAll() {
	clear(w.entries)
	w.entries, w.failed, w.carried, w.problems = w.entries[:0], nil, nil, nil
	w.counts.Files, w.counts.Bytes = 0, 0
	if w.spilled != nil {
		w.spilled.close()
		w.spilled = nil
	}
}

// selectFrom removes excluded entries from index from on, in place, and records whether one of them
// excludes all.
func (w *visit) selectFrom(from int) {
	m := w.slice.match
	read := w.entries[from:]
	w.excluded = m.HasMarkers() && m.AnyMarker(read)
	kept := slices.DeleteFunc(read, func(e backup.Entry) bool {
		// Patterns come first, so that those that match only what is excluded anyway count as matches.
		return m.HasPatterns() && m.Excluded(backup.Join(w.path, e.Name), e.Kind == backup.Directory) ||
			e.Kind == backup.File && m.TooLarge(e.Size) || m.LeavesOutMounted(e)
	})
	w.entries = w.entries[:from+len(kept)]
}

// dropSnapshotDir leaves out the directory of the source snapshots.
func (w *visit) dropSnapshotDir(from int) {
	kept := slices.DeleteFunc(w.entries[from:], func(e backup.Entry) bool {
		return e.Kind == backup.Directory && e.Name == w.slice.snapshotDir
	})
	w.entries = w.entries[:from+len(kept)]
}

func (w *visit) flagRacy(e *backup.Entry) {
	if listing.IsRacy(w.slice.task.Job.Compare, e, w.slice.racyFrom) {
		e.Flags |= backup.Racy
	}
}

func (w *visit) problem(name, op string, err error) {
	path := w.path
	if name != "" && len(path)+1+len(name) <= backup.MaxPathBytes {
		path = backup.Join(w.path, name)
	}
	w.problems = append(w.problems, backup.Problem{Path: path, Op: op, Err: plainError(err)})
}

// plainError drops the operation and path that an error repeats.
func plainError(err error) string {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err.Error()
	}
	return err.Error()
}

// cut cuts the sorted entries into pages and keeps those whose fingerprint differs from the last
// snapshot.
func (w *visit) cut() {
	rest := w.entries
	self, key := &w.self, backup.PageKey(0)
	var keys listing.Keys
	for {
		w.keys = append(w.keys, key)
		n := listing.Cut(rest, false)
		p := page{key: key, self: self, entries: rest[:n]}
		if rest = rest[n:]; len(rest) > 0 {
			p.next = keys.Next(rest[0].Name)
		}
		w.compare(p)
		if len(rest) == 0 {
			return
		}
		self, key = nil, p.next
	}
}

// compare keeps the page unless its fingerprint equals the last snapshot's. A page that must be
// looked at again is stored even if nothing else is new.
func (w *visit) compare(p page) {
	p.fingerprint = w.fingerprint.Of(w.slice.task.Job.Compare, p.self, p.entries, p.next)
	flagged := isProvisional(&p)
	if !flagged && w.unchanged(&p) && !w.isBroken(p.key) {
		w.countUnchanged(p.entries)
		return
	}
	if flagged || len(w.problems) > 0 {
		p.fingerprint = backup.Fingerprint{}
	}
	w.pages = append(w.pages, p)
}

func (w *visit) unchanged(p *page) bool {
	if w.slice.svc.opts.Reread {
		return false
	}
	for i := range w.marks {
		if w.marks[i].Key == p.key {
			return w.marks[i].Fingerprint.Matches(p.fingerprint)
		}
	}
	return false
}

func (w *visit) countUnchanged(entries []backup.Entry) {
	for i := range entries {
		if entries[i].Kind != backup.Directory {
			w.counts.FilesUnchanged++
		}
	}
}

// isProvisional reports whether the next snapshot must look at the page again.
func isProvisional(p *page) bool {
	if p.self != nil && p.self.Flags&backup.Provisional != 0 {
		return true
	}
	return slices.ContainsFunc(p.entries, func(e backup.Entry) bool { return e.Flags&backup.Provisional != 0 })
}
