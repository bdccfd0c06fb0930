package journal

import (
	"fmt"
	"iter"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A SegmentHeader is the header of each part of a segment.
type SegmentHeader struct {
	Version    int      `json:"version"` // 1, or 2: the part has patches
	Part       int      `json:"part"`
	Last       bool     `json:"last"`
	Checkpoint bool     `json:"checkpoint"` // all pages of the shard, not the changes since the base
	Snapshot   Snapshot `json:"snapshot"`
	// Content is the digest of the snapshot's pages. It is in the last part only, because it is
	// known only after all changes.
	Content *Digest `json:"content,omitempty"`
}

// A Segment is the result of one attempt to write a snapshot's changes.
type Segment struct {
	Attempt    backup.PackID
	Checkpoint bool
	Parts      int
	Bytes      int64 // of all parts, as stored
	Content    backup.PageSet
}

// patchVersion is the version of a part with patches.
const patchVersion = 2

// WriteSegment encodes, seals and signs the segment of s. It calls put with each part, in order;
// data is valid only during the call. The content of s is computed from base, the content of its
// base, and the changes. A checkpoint has no base: its changes are all pages.
//
// If nothing changed, and it is not a checkpoint, there are no parts; the commit record is
// sufficient.
func WriteSegment(keys Keys, s *backup.Snapshot, checkpoint bool, base backup.PageSet, changes iter.Seq2[backup.PageChange, error], put func(name string, data []byte) error) (Segment, error) {
	w, err := newSegmentWriter(keys, s, backup.NewPackID(), checkpoint, base, put)
	if err != nil {
		return Segment{}, err
	}
	return w.write(changes)
}

// Content returns the content of a snapshot, given the content of its base and the snapshot's
// changes.
func Content(base backup.PageSet, changes iter.Seq2[backup.PageChange, error]) (backup.PageSet, error) {
	for c, err := range changes {
		switch {
		case err != nil:
			return backup.PageSet{}, err
		case c.Ended:
			base.Remove(c.Digest)
		default:
			base.Add(c.Digest)
		}
	}
	return base, nil
}

type segmentWriter struct {
	*object
	header   SegmentHeader
	put      func(name string, data []byte) error
	snapshot backup.SnapshotID
	segment  Segment
	changes  int64
}

func newSegmentWriter(keys Keys, s *backup.Snapshot, attempt backup.PackID, checkpoint bool, base backup.PageSet, put func(name string, data []byte) error) (*segmentWriter, error) {
	o, err := newObject(keys, pack.KindSegment)
	return &segmentWriter{
		object: o, put: put, snapshot: s.ID, segment: Segment{Attempt: attempt, Checkpoint: checkpoint, Content: base},
		header: SegmentHeader{Version: version, Checkpoint: checkpoint, Snapshot: SnapshotOf(s)},
	}, err
}

func (w *segmentWriter) write(changes iter.Seq2[backup.PageChange, error]) (Segment, error) {
	for c, err := range changes {
		if err == nil {
			err = w.add(&c)
		}
		if err != nil {
			return Segment{}, err
		}
	}
	if n := w.segment.Content.Pages; n < 0 {
		return Segment{}, fmt.Errorf("index: the snapshot would consist of %d pages: %w", n, backup.ErrCorrupt)
	}
	if w.changes == 0 && !w.segment.Checkpoint {
		return w.segment, nil
	}
	w.header.Last = true
	content := digestOf(w.segment.Content)
	w.header.Content = &content
	if err := w.endPart(); err != nil {
		return Segment{}, err
	}
	return w.segment, nil
}

func (w *segmentWriter) add(c *backup.PageChange) error {
	if w.full() {
		if err := w.endPart(); err != nil {
			return err
		}
	}
	w.changes++
	switch {
	case c.Ended && w.header.Checkpoint:
		return fmt.Errorf("checkpoint: page %d of %q has ended: %w", c.Key, c.Path, backup.ErrInvalid)
	case c.Ended:
		w.segment.Content.Remove(c.Digest)
	default:
		digest := listing.Digest(&c.PageVersion)
		if digest != c.Digest {
			return fmt.Errorf("index: page %d of %q differs from what was stored: %w", c.Key, c.Path, backup.ErrCorrupt)
		}
		w.segment.Content.Add(digest)
	}
	kind, stored := byte(added), c.Listing
	if c.Ended {
		kind = ended
	} else if patch, ok := patchOf(c); ok && !w.header.Checkpoint {
		kind, stored, w.header.Version = patched, patch, patchVersion
	}
	w.reserve(len(c.Path) + len(stored) + maxChangeBytes)
	w.raw = appendChange(w.raw, kind, c, stored)
	w.endRecord()
	return nil
}

func (w *segmentWriter) endPart() error {
	name := store.SegmentName(w.snapshot, w.segment.Attempt, w.header.Part)
	data, err := w.finish(w.header, w.segment.Attempt, name)
	if err != nil {
		return err
	}
	w.header.Part++
	w.header.Version = version
	w.segment.Parts++
	w.segment.Bytes += int64(len(data))
	return w.put(name, data)
}

// A SegmentPart is one opened object of a segment.
type SegmentPart struct {
	Header SegmentHeader
	opened *opened
}

// OpenSegment opens a part of a snapshot's segment that the given attempt wrote. data is the whole
// object, and the part retains it.
func OpenSegment(data []byte, snapshot backup.SnapshotID, attempt backup.PackID, part int, trust Trust) (*SegmentPart, error) {
	p := &SegmentPart{}
	name := store.SegmentName(snapshot, attempt, part)
	var err error
	if p.opened, err = open(data, pack.KindSegment, name, attempt, trust, &p.Header); err != nil {
		return nil, err
	}
	if p.Header.Part != part || p.Header.Last != (p.Header.Content != nil) {
		return nil, fmt.Errorf("%s: its header gives part %d: %w", name, p.Header.Part, backup.ErrCorrupt)
	}
	if p.Header.Last {
		if _, err := p.Header.Content.PageSet(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := p.Header.Snapshot.check(name, snapshot); err != nil {
		return nil, err
	}
	return p, nil
}

// Changes yields the part's changes in the order in which they were written: added pages first,
// then ended pages, which have no Digest. A page that is both added and ended replaces the base's
// version. A checkpoint has only added pages. base returns the listing of the base's version of a
// page, nil for none; Changes calls it for pages of which the part has patches.
func (p *SegmentPart) Changes(base func(path string, key backup.PageKey) ([]byte, error)) iter.Seq2[backup.PageChange, error] {
	return func(yield func(backup.PageChange, error) bool) {
		for c, err := range p.StoredChanges() {
			var old []byte
			if err == nil && c.Patched {
				old, err = base(c.Path, c.Key)
			}
			if err == nil {
				err = c.Complete(old)
			}
			if err != nil {
				yield(backup.PageChange{}, err)
				return
			}
			if !yield(c.PageChange, nil) {
				return
			}
		}
	}
}

// StoredChanges is Changes for callers that look up the base's versions of many pages at a time.
func (p *SegmentPart) StoredChanges() iter.Seq2[StoredChange, error] {
	return func(yield func(StoredChange, error) bool) {
		for n := 1; n <= p.opened.frames(); n++ {
			raw, err := p.opened.frame(n)
			for err == nil && len(raw) > 0 {
				var c StoredChange
				if c, raw, err = decodeChange(raw, p.Header.Version == patchVersion && !p.Header.Checkpoint); err == nil && c.Ended && p.Header.Checkpoint {
					err = fmt.Errorf("checkpoint: page %d of %q has ended: %w", c.Key, c.Path, backup.ErrCorrupt)
				}
				if err == nil && !yield(c, nil) {
					return
				}
			}
			if err != nil {
				yield(StoredChange{}, err)
				return
			}
		}
	}
}
