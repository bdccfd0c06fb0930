package journal

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"iter"
	"time"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A Commit is the record of how a snapshot ended. It is written after the commit point: if a
// snapshot has no record, it was not committed, or its record is not written yet.
type Commit struct {
	Version  int          `json:"version"`          // 1, or 2: it is an amendment
	State    backup.State `json:"state"`            // committed or failed
	Reason   string       `json:"reason,omitempty"` // the reason of the failure
	Ended    time.Time    `json:"ended"`
	Snapshot Snapshot     `json:"snapshot"`
	// Segment is the valid segment of a committed snapshot; nil if nothing changed.
	Segment *CommitSegment `json:"segment,omitempty"`
	// Content is the digest of a committed snapshot's pages.
	Content *Digest       `json:"content,omitempty"`
	Counts  backup.Counts `json:"counts"`
	// ChurnScore is how many files became opaque, in thousandths of what raises an alarm. Alarm is
	// what the alarm of the snapshot said. It may be acknowledged: catalogs have those that are
	// not.
	ChurnScore int64  `json:"churn_score,omitempty"`
	Alarm      string `json:"alarm,omitempty"`
	// Amendment is the sequence of an amended record: 1, 2, 3 and so on. 0: it is the first record.
	Amendment int `json:"amendment,omitempty"`
	// BasedOn is the snapshot whose pages the segment of an amended record changes; nil if the
	// segment is a checkpoint. It takes the place of Snapshot.Base.
	BasedOn *Base `json:"based_on,omitempty"`
	// Problems is the number of problems that follow. Counts.Errors is the total number.
	Problems int64 `json:"problems"`
}

// A CommitSegment identifies a segment.
type CommitSegment struct {
	Attempt    string `json:"attempt"` // hexadecimal
	Parts      int    `json:"parts"`
	Checkpoint bool   `json:"checkpoint"`
}

// NewCommit returns the record of a snapshot that has ended.
func NewCommit(s *backup.Snapshot, ended time.Time) Commit {
	c := Commit{Version: version, State: s.State, Reason: s.Reason, Ended: ended.UTC(), Snapshot: SnapshotOf(s), Counts: s.Counts, ChurnScore: s.ChurnScore, Alarm: s.Alarm}
	if s.State == backup.Committed {
		content := digestOf(s.Pages)
		c.Content = &content
		if segment := s.Segment; segment.Parts > 0 {
			c.Segment = &CommitSegment{segment.Attempt.String(), segment.Parts, segment.Checkpoint}
		}
	}
	return c
}

// amendedVersion is the version of an amended record.
const amendedVersion = 2

// Amend makes c, the record of s as it is now, an amended one. base is the snapshot whose pages the
// segment changes, or nil.
func (c *Commit) Amend(amendment int, base *backup.Snapshot) {
	c.Version, c.Amendment = amendedVersion, amendment
	if base != nil {
		c.BasedOn = &Base{base.Number, base.ID.String()}
	}
}

// EncodeCommit seals and signs the record with the problems, starting with the first: as many as an
// object of partBytes holds. The object's name is store.AmendedName.
func EncodeCommit(keys Keys, id backup.SnapshotID, c Commit, problems iter.Seq2[backup.Problem, error]) ([]byte, error) {
	o, err := newObject(keys, pack.KindCommit)
	if err != nil {
		return nil, err
	}
	c.Problems = 0
	for p, err := range problems {
		if err != nil {
			return nil, err
		}
		line, err := json.Marshal(problemOf(p))
		if err != nil {
			return nil, err
		}
		o.raw = append(append(o.raw, line...), '\n')
		o.endRecord()
		c.Problems++
		if o.full() {
			break
		}
	}
	return o.finish(c, backup.PackID(id), store.AmendedName(id, c.Amendment))
}

// OpenCommit opens a snapshot's first record. data is the whole object.
func OpenCommit(data []byte, id backup.SnapshotID, trust Trust) (Commit, iter.Seq2[backup.Problem, error], error) {
	return OpenAmended(data, id, 0, trust)
}

// OpenAmended opens an amended record; that of amendment 0 is the first record.
func OpenAmended(data []byte, id backup.SnapshotID, amendment int, trust Trust) (c Commit, problems iter.Seq2[backup.Problem, error], err error) {
	name := store.AmendedName(id, amendment)
	o, err := open(data, pack.KindCommit, name, backup.PackID(id), trust, &c)
	if err != nil {
		return Commit{}, nil, err
	}
	if amendment == 0 && c.Version != version {
		return Commit{}, nil, fmt.Errorf("%s: version %d of a record that is no amendment: %w", name, c.Version, backup.ErrInvalid)
	}
	if c.Amendment != amendment || (c.Version == amendedVersion) != (amendment > 0) {
		return Commit{}, nil, fmt.Errorf("%s: its header gives amendment %d, version %d: %w", name, c.Amendment, c.Version, backup.ErrCorrupt)
	}
	if err := c.check(name, id); err != nil {
		return Commit{}, nil, err
	}
	return c, func(yield func(backup.Problem, error) bool) {
		n := int64(0)
		for line, err := range o.lines() {
			var p backup.Problem
			if err == nil {
				p, err = decodeProblem(line)
			}
			if n++; !yield(p, err) || err != nil {
				return
			}
		}
		if n != c.Problems {
			yield(backup.Problem{}, fmt.Errorf("%s: it has %d problems, but its header gives %d: %w", name, n, c.Problems, backup.ErrCorrupt))
		}
	}, nil
}

func (c *Commit) check(name string, id backup.SnapshotID) error {
	if err := c.Snapshot.check(name, id); err != nil {
		return err
	}
	committed := c.State == backup.Committed
	if !committed && c.State != backup.Failed || committed != (c.Content != nil) || c.Segment != nil && !committed || c.Problems < 0 {
		return fmt.Errorf("%s: the record has an invalid state %.20q, or parts that do not go with it: %w", name, c.State, backup.ErrCorrupt)
	}
	if b := c.BasedOn; b != nil && (!committed || c.Amendment == 0 || !isID(b.ID) || b.Number < 1 || b.Number >= c.Snapshot.Number) {
		return fmt.Errorf("%s: it is based on snapshot %.40q, number %d: %w", name, b.ID, b.Number, backup.ErrCorrupt)
	}
	if !committed {
		return nil
	}
	if c.Amendment > 0 && (c.BasedOn == nil) != (c.Segment != nil && c.Segment.Checkpoint) {
		return fmt.Errorf("%s: an amended record is based on a snapshot, or names a checkpoint: %w", name, backup.ErrCorrupt)
	}
	if _, err := c.Content.PageSet(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if g := c.Segment; g != nil && (g.Parts < 1 || !isID(g.Attempt)) {
		return fmt.Errorf("%s: invalid segment of %d parts, attempt %.40q: %w", name, g.Parts, g.Attempt, backup.ErrCorrupt)
	}
	return nil
}

// A problem is a backup.Problem in JSON. PathBytes is the path if it is not UTF-8.
type problem struct {
	Path      string `json:"path"`
	PathBytes string `json:"path_b64,omitempty"`
	Op        string `json:"op"`
	Err       string `json:"error"`
}

func problemOf(p backup.Problem) problem {
	j := problem{Path: p.Path, Op: p.Op, Err: p.Err}
	if !utf8.ValidString(p.Path) {
		j.PathBytes = base64.StdEncoding.EncodeToString([]byte(p.Path))
	}
	return j
}

func decodeProblem(line []byte) (backup.Problem, error) {
	var j problem
	if err := decodeLine(line, &j); err != nil {
		return backup.Problem{}, err
	}
	p := backup.Problem{Path: j.Path, Op: j.Op, Err: j.Err}
	if j.PathBytes != "" {
		raw, err := base64.StdEncoding.DecodeString(j.PathBytes)
		if err != nil {
			return backup.Problem{}, fmt.Errorf("problem with the path %.80q: %w: %w", j.PathBytes, err, backup.ErrCorrupt)
		}
		p.Path = string(raw)
	}
	return p, nil
}

// lines yields the lines of all frames after the header.
func (o *opened) lines() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for n := 1; n <= o.frames(); n++ {
			raw, err := o.frame(n)
			if err != nil {
				yield(nil, err)
				return
			}
			for line := range bytes.Lines(raw) {
				if !yield(line, nil) {
					return
				}
			}
		}
	}
}

func decodeLine(line []byte, to any) error {
	if err := json.Unmarshal(line, to); err != nil {
		return fmt.Errorf("invalid line: %w: %w", err, backup.ErrCorrupt)
	}
	return nil
}
