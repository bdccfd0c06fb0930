package walk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
)

// A visitor has what listing one directory needs, to be used again for the
// next. It belongs to one goroutine.
type visitor struct {
	entries     []backup.Entry
	pages       []page
	keys        []backup.PageKey // of all of a directory's pages
	fingerprint *listing.Fingerprinter
	encode      listing.Encoder
}

// keepEntries is how large a directory's buffer is kept for the next one.
const keepEntries = 64 << 10

// maxFailed entries of one directory can be told one by one; more are a
// directory that cannot be read.
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
	key         backup.PageKey
	self        *backup.Entry // on page 0
	entries     []backup.Entry
	fingerprint backup.Fingerprint // as it will be stored: zero if it must be looked at again
}

// A visit is one directory of a slice, while it is worked on.
type visit struct {
	*visitor
	slice *slice
	path  string
	dir   source.Directory
	self  backup.Entry
	marks []index.PageMark

	counts   backup.Counts
	problems []backup.Problem
	failed   []string      // entries that are there, but could not be looked at
	total    int           // entries listed
	excluded bool          // one of them says that the directory is kept empty
	spilled  *spill        // the runs of a directory too large for memory
	held     int           // entries that svc.held counts
	answers  time.Duration // that the source took for counts.StatCalls
	latency  time.Duration // of a stat, in the mean
}

// visit lists one directory, compares its pages with the last snapshot, and
// adds what differs to the result. It returns the subdirectories to walk.
func (v *visitor) visit(ctx context.Context, s *slice, path string) (subdirectories []string, entries int, err error) {
	marks, err := s.marks.of(ctx, path)
	if err != nil {
		return nil, 0, err
	}
	asked := s.hold.ask()
	dir, err := s.tree.OpenDirectory(ctx, path)
	answers := s.hold.answer(asked)
	if err != nil {
		return nil, 0, s.notOpened(ctx, path, len(marks) > 0, err)
	}
	defer dir.Close()
	w := &visit{visitor: v, slice: s, path: path, dir: dir, self: dir.Self(), marks: marks, answers: answers}
	w.counts.Directories, w.counts.StatCalls = 1, 1
	defer w.release()
	if err := w.list(ctx); err != nil {
		return nil, 0, s.notListed(ctx, w, err)
	}
	w.latency = w.answers / time.Duration(w.counts.StatCalls)
	if err := w.complete(ctx); err != nil {
		return nil, 0, err
	}
	if w.spilled != nil {
		subdirectories, err = w.storeSpilled(ctx)
		return subdirectories, w.total, err
	}
	w.cut()
	subdirectories = w.subdirectories(nil, w.entries)
	return subdirectories, w.total, w.store(ctx)
}

// subdirectories appends the paths of the directories among entries to dst.
func (w *visit) subdirectories(dst []string, entries []backup.Entry) []string {
	for i := range entries {
		e := &entries[i]
		if e.Kind != backup.Directory {
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

// release lets go of what the directory held.
func (w *visit) release() {
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

// list reads the directory, without what is excluded. Of a directory too large
// for memory it leaves sorted runs in w.spilled, and the last of it in memory.
func (w *visit) list(ctx context.Context) error {
	w.entries = w.entries[:0]
	w.flagRacy(&w.self)
	if w.slice.task.Job.Selection.OneFileSystem && w.self.Device != w.slice.tree.RootDevice() {
		return nil // a mount point is kept, empty
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

// notStated notes an entry that could not be looked at. One that is excluded
// may be so for just that reason.
func (w *visit) notStated(name, op string, err error) {
	path := backup.Join(w.path, name)
	if m := w.slice.match; m.HasPatterns() && (m.Excluded(path, false) || m.Excluded(path, true)) {
		return
	}
	w.problem(name, op, err)
	w.failed = append(w.failed, name)
}

// complete makes of what was listed what the snapshot shall have: with the
// last good copy of entries that could not be looked at, and in order.
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

// admit sorts the entries in memory, flags what is racy and counts them.
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
		w.counts.Bytes += e.Size
	}
}

// dropAll makes the directory an empty one, of which nothing failed.
func (w *visit) dropAll() {
	clear(w.entries)
	w.entries, w.failed, w.problems = w.entries[:0], nil, nil
	w.counts.Files, w.counts.Bytes = 0, 0
	if w.spilled != nil {
		w.spilled.close()
		w.spilled = nil
	}
}

// selectFrom keeps, in place, the entries from there on that are not excluded,
// and notes whether one of them excludes all.
func (w *visit) selectFrom(from int) {
	m := w.slice.match
	read := w.entries[from:]
	w.excluded = m.HasMarkers() && slices.ContainsFunc(read, func(e backup.Entry) bool { return m.IsMarker(e.Name) })
	kept := slices.DeleteFunc(read, func(e backup.Entry) bool {
		if e.Kind == backup.File && m.TooLarge(e.Size) {
			return true
		}
		return m.HasPatterns() && m.Excluded(backup.Join(w.path, e.Name), e.Kind == backup.Directory)
	})
	w.entries = w.entries[:from+len(kept)]
}

// dropSnapshotDir leaves the directory of the source snapshots out.
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

// cut cuts the sorted entries into pages and keeps those whose fingerprint is
// not the last snapshot's.
func (w *visit) cut() {
	rest := w.entries
	self, key := &w.self, backup.PageKey(0)
	for {
		w.keys = append(w.keys, key)
		n := listing.Cut(rest, false)
		w.compare(page{key: key, self: self, entries: rest[:n]})
		if rest = rest[n:]; len(rest) == 0 {
			return
		}
		self, key = nil, listing.Key(rest[0].Name)
	}
}

// compare keeps the page unless its fingerprint is the last snapshot's. A flag
// must be stored even if nothing else is new.
func (w *visit) compare(p page) {
	p.fingerprint = w.fingerprint.Of(w.slice.task.Job.Compare, p.self, p.entries)
	flagged := hasFlags(&p)
	if !flagged && w.unchanged(&p) {
		w.countUnchanged(p.entries)
		return
	}
	if flagged || len(w.problems) > 0 {
		p.fingerprint = backup.Fingerprint{}
	}
	w.pages = append(w.pages, p)
}

func (w *visit) unchanged(p *page) bool {
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

func hasFlags(p *page) bool {
	if p.self != nil && p.self.Flags != 0 {
		return true
	}
	return slices.ContainsFunc(p.entries, func(e backup.Entry) bool { return e.Flags != 0 })
}

// notOpened decides what becomes of a directory that could not be opened.
func (s *slice) notOpened(ctx context.Context, path string, known bool, err error) error {
	switch {
	case transient(ctx, err):
		return err
	case path == "":
		return fmt.Errorf("%w: %w", errRootGone, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, backup.ErrOutside), errors.Is(err, syscall.ENOTDIR):
		if !known {
			return nil
		}
		return s.result.removed(ctx, path)
	}
	// What the last snapshot has of it stays valid: it is carried forward.
	return s.result.add(ctx, contribution{
		counts:   backup.Counts{Directories: 1, Errors: 1},
		problems: []backup.Problem{{Path: path, Op: "open", Err: plainError(err)}},
	})
}

// notListed decides what becomes of a directory that could be opened but not
// read: without an old copy, its own attributes are all there is to keep.
func (s *slice) notListed(ctx context.Context, w *visit, err error) error {
	switch {
	case transient(ctx, err):
		return err
	case w.path == "":
		return fmt.Errorf("%w: %w", errRootGone, err)
	}
	w.problem("", "list", err)
	w.entries = w.entries[:0]
	if len(w.marks) == 0 {
		w.self.Flags |= backup.Unreadable
		w.pages = append(w.pages[:0], page{self: &w.self})
	}
	w.counts = backup.Counts{Directories: 1, StatCalls: w.counts.StatCalls}
	return w.storePages(ctx)
}
