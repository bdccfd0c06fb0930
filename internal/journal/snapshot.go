package journal

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/keytext"
)

// A Snapshot is the description of a snapshot in segments and commit records.
type Snapshot struct {
	ID    string `json:"id"`    // hexadecimal
	Filer string `json:"filer"` // the filer's name
	Shard string `json:"shard"` // the shard's name
	// ShardKey is hexadecimal, and does not change with the shard's name.
	ShardKey string                `json:"shard_key"`
	Number   backup.SnapshotNumber `json:"number"`
	Base     *Base                 `json:"base,omitempty"` // nil: there was nothing to compare with
	Started  time.Time             `json:"started"`

	Source string `json:"source"` // URL of the shard's root
	// Read is the URL of the source snapshot that was read instead.
	Read string `json:"read,omitempty"`
	Root string `json:"root,omitempty"` // identity of the root that was read
	// Compare lists the attributes that determined whether a file was unchanged.
	Compare     string           `json:"compare"`
	Selection   backup.Selection `json:"selection"` // the exclusions
	Tags        []string         `json:"tags,omitempty"`
	AllowShrink bool             `json:"allow_shrink,omitempty"`
	NewRoot     bool             `json:"new_root,omitempty"`
}

// A Base names the snapshot that another was compared with.
type Base struct {
	Number backup.SnapshotNumber `json:"number"`
	ID     string                `json:"id"`
}

// SnapshotOf returns the description of s for the store.
func SnapshotOf(s *backup.Snapshot) Snapshot {
	j := Snapshot{
		ID: s.ID.String(), Filer: s.Filer.Name, Shard: s.Shard.Name, ShardKey: s.Shard.Key.String(), Number: s.Number,
		Started: s.Started.UTC(), Source: s.Shard.Source, Root: s.Root.String(), Compare: s.Compare.String(),
		Selection: s.Selection, Tags: s.Tags, AllowShrink: s.AllowShrink, NewRoot: s.NewRoot,
	}
	if s.Base > 0 {
		j.Base = &Base{s.Base, s.BaseID.String()}
	}
	if s.Source != s.Shard.Source {
		j.Read = s.Source
	}
	return j
}

// check returns an error unless the identifiers are valid and belong to the expected snapshot.
func (s *Snapshot) check(name string, want backup.SnapshotID) error {
	b := s.Base
	if s.ID != want.String() || !isID(s.ShardKey) || s.Number < 1 || b != nil && (!isID(b.ID) || b.Number < 1 || b.Number >= s.Number) {
		return fmt.Errorf("%s: its header gives snapshot %.40q, number %d: %w", name, s.ID, s.Number, backup.ErrCorrupt)
	}
	return nil
}

// isID reports whether text has the form of an identifier: 32 hexadecimal digits.
func isID(text string) bool {
	var id [16]byte
	return keytext.DecodeHex(id[:], text)
}

// A Digest is a backup.PageSet in JSON.
type Digest struct {
	Pages int64  `json:"pages"`
	Sum   string `json:"sum"` // hexadecimal
}

func digestOf(s backup.PageSet) Digest { return Digest{s.Pages, hex.EncodeToString(s.Sum[:])} }

// PageSet returns the set that the digest represents.
func (d Digest) PageSet() (s backup.PageSet, err error) {
	if !keytext.DecodeHex(s.Sum[:], d.Sum) || d.Pages < 0 {
		return backup.PageSet{}, fmt.Errorf("digest %.80q of %d pages: %w", d.Sum, d.Pages, backup.ErrCorrupt)
	}
	s.Pages = d.Pages
	return s, nil
}
