package store

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// The names of objects. docs/formats/store.md describes the layout.
const (
	// ConfigName is the repository's configuration: its identity, and the worker key sealed to the
	// recipients. It is written once, by init; the recipients in force may be others (KeysPrefix).
	ConfigName = "repository"

	PacksPrefix    = "packs/"
	SegmentsPrefix = "segments/"
	CommitsPrefix  = "commits/"
	CatalogPrefix  = "catalog/"
	IndexPrefix    = "index/"
	KeysPrefix     = "keys/"
	ParityPrefix   = "parity/"

	RecipientsPrefix = KeysPrefix + "recipients-"
	WrapsPrefix      = KeysPrefix + "wraps-"
)

// PackName is the name of a pack's object. It contains the snapshot that the pack was created for.
// An object of a snapshot that has ended is an orphan unless it belongs to a registered pack.
func PackName(snapshot backup.SnapshotID, pack backup.PackID) string {
	return PacksPrefix + snapshot.String() + "/" + pack.String()
}

// ParsePackName is the inverse of PackName.
func ParsePackName(name string) (snapshot backup.SnapshotID, pack backup.PackID, ok bool) {
	owner, object, _ := strings.Cut(strings.TrimPrefix(name, PacksPrefix), "/")
	snapshot, err := backup.ParseSnapshotID(owner)
	pack, wrong := backup.ParsePackID(object)
	return snapshot, pack, err == nil && wrong == nil && name == PackName(snapshot, pack)
}

// IsTest reports whether an object is one with which bctl has tested a store. Its name is that of a
// pack, a part of a segment or a commit record of no snapshot, so that the roles that may put those
// may put it. It belongs to no backup.
func IsTest(name string) bool {
	_, rest, _ := strings.Cut(name, "/")
	return strings.HasPrefix(rest, backup.SnapshotID{}.String())
}

// SegmentName is the name of part n of a snapshot's index segment, as written by one attempt at the
// commit.
func SegmentName(snapshot backup.SnapshotID, attempt backup.PackID, part int) string {
	return fmt.Sprintf("%s%s/%s-%06d", SegmentsPrefix, snapshot, attempt, part)
}

// ParseSegmentName is the inverse of SegmentName.
func ParseSegmentName(name string) (snapshot backup.SnapshotID, attempt backup.PackID, part int, ok bool) {
	owner, object, _ := strings.Cut(strings.TrimPrefix(name, SegmentsPrefix), "/")
	id, digits, _ := strings.Cut(object, "-")
	snapshot, err := backup.ParseSnapshotID(owner)
	attempt, wrong := backup.ParsePackID(id)
	part, bad := strconv.Atoi(digits)
	ok = err == nil && wrong == nil && bad == nil && part >= 0 && name == SegmentName(snapshot, attempt, part)
	return snapshot, attempt, part, ok
}

// CommitName is the name of a snapshot's commit record.
func CommitName(snapshot backup.SnapshotID) string { return CommitsPrefix + snapshot.String() }

// AmendedName is the name of an amended commit record: the first amendment is 1. Amendment 0 is the
// record itself.
func AmendedName(snapshot backup.SnapshotID, amendment int) string {
	if amendment == 0 {
		return CommitName(snapshot)
	}
	return fmt.Sprintf("%s-%06d", CommitName(snapshot), amendment)
}

// ParseCommitName is the inverse of AmendedName.
func ParseCommitName(name string) (snapshot backup.SnapshotID, amendment int, ok bool) {
	text, digits, amended := strings.Cut(strings.TrimPrefix(name, CommitsPrefix), "-")
	snapshot, err := backup.ParseSnapshotID(text)
	if err == nil && amended {
		amendment, err = strconv.Atoi(digits)
	}
	return snapshot, amendment, err == nil && amendment >= 0 && name == AmendedName(snapshot, amendment)
}

// SegmentsOf is the beginning of the names of all segments of a snapshot.
func SegmentsOf(snapshot backup.SnapshotID) string { return SegmentsPrefix + snapshot.String() + "/" }

// CatalogName is the name of a catalog. The names sort in the order of their sequences.
func CatalogName(sequence int64) string { return fmt.Sprintf("%s%016x", CatalogPrefix, sequence) }

// ParseCatalogName returns the sequence of a catalog. ok is false unless CatalogName returns the
// name.
func ParseCatalogName(name string) (sequence int64, ok bool) {
	digits, _ := strings.CutPrefix(name, CatalogPrefix)
	sequence, err := strconv.ParseInt(digits, 16, 64)
	return sequence, err == nil && sequence > 0 && name == CatalogName(sequence)
}

// IndexName is the name of part n of a copy of the index.
func IndexName(sequence int64, part int) string {
	return fmt.Sprintf("%s%016x-%06d", IndexPrefix, sequence, part)
}

// ParseIndexName returns the sequence and the part in the name of a part of a copy of the index.
func ParseIndexName(name string) (sequence int64, part int, ok bool) {
	digits, number, _ := strings.Cut(strings.TrimPrefix(name, IndexPrefix), "-")
	sequence, err := strconv.ParseInt(digits, 16, 64)
	part, wrong := strconv.Atoi(number)
	return sequence, part, err == nil && wrong == nil && sequence < math.MaxInt64 && name == IndexName(sequence, part)
}

// RecipientsName is the name of a statement of the recipients in force. The names sort in the order
// of their sequences.
func RecipientsName(sequence int64) string { return fmt.Sprintf("%s%016x", RecipientsPrefix, sequence) }

// ParseRecipientsName returns the sequence of a statement of recipients. ok is false unless
// RecipientsName returns the name.
func ParseRecipientsName(name string) (sequence int64, ok bool) {
	digits, _ := strings.CutPrefix(name, RecipientsPrefix)
	sequence, err := strconv.ParseInt(digits, 16, 64)
	return sequence, err == nil && sequence > 0 && name == RecipientsName(sequence)
}

// WrapsName is the name of the part of a rotation that begins with the given key id. The names of a
// rotation's parts sort in the order of their key ids.
func WrapsName(rotation int64, first [16]byte) string {
	return fmt.Sprintf("%s%016x-%x", WrapsPrefix, rotation, first)
}

// ParseWrapsName is the inverse of WrapsName.
func ParseWrapsName(name string) (rotation int64, first [16]byte, ok bool) {
	digits, id, _ := strings.Cut(strings.TrimPrefix(name, WrapsPrefix), "-")
	rotation, err := strconv.ParseInt(digits, 16, 64)
	if err != nil || len(id) != hex.EncodedLen(len(first)) {
		return 0, first, false
	}
	_, err = hex.Decode(first[:], []byte(id))
	return rotation, first, err == nil && rotation > 0 && name == WrapsName(rotation, first)
}

// ParityName is the name of the parity object of a group that has the given number.
func ParityName(group backup.PackID, number int) string {
	return fmt.Sprintf("%s%s-%02d", ParityPrefix, group, number)
}

// ParseParityName is the inverse of ParityName.
func ParseParityName(name string) (group backup.PackID, number int, ok bool) {
	text, digits, _ := strings.Cut(strings.TrimPrefix(name, ParityPrefix), "-")
	group, err := backup.ParsePackID(text)
	number, wrong := strconv.Atoi(digits)
	return group, number, err == nil && wrong == nil && number >= 0 && name == ParityName(group, number)
}

// MaxNameBytes is the length of the longest name. S3 allows 1,024 bytes; the rest is for the prefix
// that a store may have within its bucket.
const MaxNameBytes = 512

// CheckName returns an error that wraps backup.ErrInvalid unless name is valid for an object:
// components of letters, digits, '.', '-' and '_', separated by slashes, none of them ".", ".." or
// longer than 255 bytes.
func CheckName(name string) error {
	if len(name) > MaxNameBytes {
		return fmt.Errorf("object name of %d bytes is longer than %d: %w", len(name), MaxNameBytes, backup.ErrInvalid)
	}
	for component := range strings.SplitSeq(name, "/") {
		if !validComponent(component) {
			return fmt.Errorf("invalid object name %q: %w", name, backup.ErrInvalid)
		}
	}
	return nil
}

// CheckPrefix is CheckName for the beginning of a name: it may be empty, and may end in a slash.
func CheckPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	return CheckName(strings.TrimSuffix(prefix, "/"))
}

func validComponent(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > 255 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		digit := '0' <= c && c <= '9'
		if !letter && !digit && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// CheckRange returns an error that wraps backup.ErrInvalid unless offset and length are a range
// that GetRange allows.
func CheckRange(offset, length int64) error {
	if length < 0 || offset < 0 && length > -offset || offset >= 0 && offset+length < 0 {
		return fmt.Errorf("invalid range of %d bytes from %d: %w", length, offset, backup.ErrInvalid)
	}
	return nil
}
