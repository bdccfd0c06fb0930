package walk

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/stall"
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

func newVisitor() *visitor {
	return &visitor{fingerprint: listing.NewFingerprinter()}
}

// A visit is one directory of a slice while it is processed.
type visit struct {
	*visitor
	slice *slice
	path  string
	dir   source.Directory
	self  backup.Entry
	shown source.XattrsShown
	marks []index.PageMark // of the directory's pages in the last snapshot

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
	spilled  *runFile      // the runs of a directory too large for memory
	buffered int           // entries that svc.buffered counts
	answers  time.Duration // time that the stats of counts.StatCalls took
	latency  time.Duration // mean time of a stat
}

// visit lists one directory (look), compares the fingerprints of its pages with the last snapshot's
// (compare), compares the pages that differ entry by entry, and adds them to the findings
// (addDifferences). The other steps handle directories that are unreadable, not mounted, or too
// large for memory. It returns the subdirectories to walk.
func (v *visitor) visit(ctx context.Context, s *slice, path string) (subdirectories []string, entries int, err error) {
	marks, err := s.marks.of(ctx, path)
	if err != nil {
		return nil, 0, err
	}
	w, err := v.look(ctx, s, path, marks)
	defer w.close()
	if err != nil {
		return nil, 0, w.settleUnread(ctx, err)
	}
	if err := w.complete(ctx); err != nil {
		return nil, 0, err
	}
	if err := w.recognize(ctx); err != nil {
		return nil, 0, err
	}
	if w.spilled != nil {
		subdirectories, err = w.addSpilled(ctx)
		return subdirectories, w.total, err
	}
	old, gone, err := w.compare(ctx)
	if err != nil {
		return nil, 0, err
	}
	subdirectories = w.subdirectories(nil, w.entries) // may report some that cannot be walked
	carried, err := w.addDifferences(ctx, &old, gone)
	if err != nil || carried {
		return nil, 0, err
	}
	return subdirectories, w.total, nil
}

// look opens and lists a directory, once more if its handle was stale, because it may still exist.
// With an error, the visit shows how far it came.
func (v *visitor) look(ctx context.Context, s *slice, path string, marks []index.PageMark) (*visit, error) {
	w, err := v.lookOnce(ctx, s, path, marks)
	if errors.Is(err, source.ErrStale) {
		w.close()
		return v.lookOnce(ctx, s, path, marks)
	}
	return w, err
}

func (v *visitor) lookOnce(ctx context.Context, s *slice, path string, marks []index.PageMark) (*visit, error) {
	w := &visit{visitor: v, slice: s, path: path, marks: marks}
	dir, err := s.tree.OpenDirectory(ctx, path)
	if err != nil {
		return w, err
	}
	w.dir, w.self = dir, dir.Self()
	w.counts.Directories, w.counts.StatCalls = 1, 1
	err = w.list(ctx)
	w.answers = stall.Took(dir)
	w.latency = w.answers / time.Duration(w.counts.StatCalls)
	return w, err
}

// compare keeps the pages whose fingerprints differ from the last snapshot's (comparePages), and
// fetches what the last snapshot has of them (fetchOld). gone are the keys of pages that the
// directory no longer has. If content of the last snapshot was mounted and now is not, it is added
// to the entries (keepMounts), and they are compared again.
func (w *visit) compare(ctx context.Context) (old oldState, gone []backup.PageKey, err error) {
	unchanged := w.counts.FilesUnchanged
	if old, gone, err = w.compareOnce(ctx); err != nil {
		return old, gone, err
	}
	kept, err := w.keepMounts(ctx, &old)
	if err != nil || !kept {
		return old, gone, err
	}
	w.pages, w.keys, w.counts.FilesUnchanged = w.pages[:0], w.keys[:0], unchanged
	return w.compareOnce(ctx)
}

func (w *visit) compareOnce(ctx context.Context) (old oldState, gone []backup.PageKey, err error) {
	w.comparePages(ctx)
	gone = w.endedKeys()
	old, err = w.fetchOld(ctx, gone)
	return old, gone, err
}

// settleUnread settles a directory that could not be opened or listed.
func (w *visit) settleUnread(ctx context.Context, err error) error {
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
	w.buffer(0)
	v := w.visitor
	if cap(v.entries) > keepEntries {
		v.entries = nil
	}
	clear(v.entries)
	clear(v.pages)
	v.entries, v.pages, v.keys = v.entries[:0], v.pages[:0], v.keys[:0]
}

// keepEntries is the largest directory buffer, in entries, that is kept for the next directory.
const keepEntries = 64 << 10

func (w *visit) problem(name, op string, err error) {
	path := w.path
	if name != "" && len(path)+1+len(name) <= backup.MaxPathBytes {
		path = backup.Join(w.path, name)
	}
	w.problems = append(w.problems, backup.Problem{Path: path, Op: op, Err: plainError(err)})
}

// plainError drops the operation and path that an error repeats.
func plainError(err error) string {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err.Error()
	}
	return err.Error()
}
