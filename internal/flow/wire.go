package flow

import (
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/bctl/bctl/internal/backup"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// The wire form of each message: the conversion of backup's types to protobuf and back. Decoding is
// the only place that checks received values: lengths of ids, paths, and counts.

func marshal(m proto.Message) ([]byte, error) { return proto.MarshalOptions{}.Marshal(m) }

// text returns s as valid UTF-8, which protobuf requires: invalid bytes in a text for people must
// not keep the message from being sent.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// unmarshal reports any error as backup.ErrInvalid: the same bytes will always fail.
func unmarshal(data []byte, m proto.Message) error {
	if len(data) > MaxMessageBytes {
		return fmt.Errorf("message of %d bytes: %w", len(data), backup.ErrInvalid)
	}
	if err := proto.Unmarshal(data, m); err != nil {
		return fmt.Errorf("%w: %w", err, backup.ErrInvalid)
	}
	return nil
}

func id16(what string, b []byte) (id [16]byte, err error) {
	if len(b) != len(id) {
		return id, fmt.Errorf("%s of %d bytes: %w", what, len(b), backup.ErrInvalid)
	}
	return [16]byte(b), nil
}

func jobToWire(j *backup.Job) *bctlv1.Job {
	return &bctlv1.Job{
		SnapshotId: j.Snapshot[:], FilerId: int64(j.Filer), ShardId: int64(j.Shard),
		Number: int64(j.Number), Base: int64(j.Base),
		StartedSeconds: j.Started.Sec, StartedNanos: j.Started.Nsec, Source: text(j.Source),
		Selection: &bctlv1.Selection{
			Exclude: bytesOf(j.Selection.Exclude), ExcludeIfPresent: bytesOf(j.Selection.ExcludeIfPresent),
			OneFileSystem: j.Selection.OneFileSystem, ExcludeLargerBytes: j.Selection.ExcludeLargerBytes,
		},
		Snapshots: text(j.Snapshots), Compare: uint32(j.Compare), Site: text(j.Site), ReadBytesPerSecond: j.ReadBytesPerSecond,
		Root: j.Root.String(), AllowShrink: j.AllowShrink, NewRoot: j.NewRoot, Interrupted: j.Interrupted,
	}
}

func jobFromWire(m *bctlv1.Job) (backup.Job, error) {
	id, err := id16("snapshot id", m.GetSnapshotId())
	if err != nil {
		return backup.Job{}, err
	}
	if m.GetNumber() < 1 || m.GetBase() < 0 || m.GetBase() >= m.GetNumber() {
		return backup.Job{}, fmt.Errorf("snapshot %d based on %d: %w", m.GetNumber(), m.GetBase(), backup.ErrInvalid)
	}
	if m.GetStartedNanos() > 999_999_999 {
		return backup.Job{}, fmt.Errorf("start at %d nanoseconds: %w", m.GetStartedNanos(), backup.ErrInvalid)
	}
	if m.GetCompare() > uint32(backup.CompareAll) {
		return backup.Job{}, fmt.Errorf("job: compare %d: %w: %w", m.GetCompare(), errNewer, backup.ErrInvalid)
	}
	if m.GetReadBytesPerSecond() < 0 {
		return backup.Job{}, fmt.Errorf("job: %d bytes/s: %w", m.GetReadBytesPerSecond(), backup.ErrInvalid)
	}
	root, err := backup.ParseRoot(m.GetRoot())
	if err != nil {
		return backup.Job{}, err
	}
	return backup.Job{
		Root: root, AllowShrink: m.GetAllowShrink(), NewRoot: m.GetNewRoot(), Interrupted: m.GetInterrupted(),
		Snapshots: m.GetSnapshots(), Compare: backup.Compare(m.GetCompare()), Site: m.GetSite(), ReadBytesPerSecond: m.GetReadBytesPerSecond(),
		Snapshot: id, Filer: backup.FilerID(m.GetFilerId()), Shard: backup.ShardID(m.GetShardId()),
		Number: backup.SnapshotNumber(m.GetNumber()), Base: backup.SnapshotNumber(m.GetBase()),
		Started: backup.Time{Sec: m.GetStartedSeconds(), Nsec: m.GetStartedNanos()}, Source: m.GetSource(),
		Selection: backup.Selection{
			Exclude: stringsOf(m.GetSelection().GetExclude()), ExcludeIfPresent: stringsOf(m.GetSelection().GetExcludeIfPresent()),
			OneFileSystem: m.GetSelection().GetOneFileSystem(), ExcludeLargerBytes: m.GetSelection().GetExcludeLargerBytes(),
		},
	}, nil
}

func bytesOf(texts []string) [][]byte {
	out := make([][]byte, len(texts))
	for i, t := range texts {
		out[i] = []byte(t)
	}
	return out
}

func stringsOf(texts [][]byte) []string {
	if len(texts) == 0 {
		return nil
	}
	out := make([]string, len(texts))
	for i, t := range texts {
		out[i] = string(t)
	}
	return out
}

func pathsFromWire(raw [][]byte) ([]string, error) {
	paths := stringsOf(raw)
	for _, p := range paths {
		if err := backup.CheckPath(p); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

func pagesToWire(pages []backup.PageVersion) []*bctlv1.Page {
	out := make([]*bctlv1.Page, len(pages))
	for i := range pages {
		p := &pages[i]
		out[i] = &bctlv1.Page{Path: []byte(p.Path), Key: int64(p.Key), Inode: p.Inode, Listing: p.Listing}
		if p.Fingerprint != (backup.Fingerprint{}) {
			out[i].Fingerprint = p.Fingerprint[:]
		}
	}
	return out
}

func pagesFromWire(pages []*bctlv1.Page) ([]backup.PageVersion, error) {
	if len(pages) == 0 {
		return nil, nil
	}
	out := make([]backup.PageVersion, len(pages))
	for i, p := range pages {
		v := backup.PageVersion{Path: string(p.GetPath()), Key: backup.PageKey(p.GetKey()), Inode: p.GetInode(), Listing: p.GetListing()}
		if err := backup.CheckPath(v.Path); err != nil {
			return nil, err
		}
		if v.Key < 0 || len(v.Listing) == 0 {
			return nil, fmt.Errorf("page %d of %q, %d bytes: %w", v.Key, v.Path, len(v.Listing), backup.ErrInvalid)
		}
		if fp := p.GetFingerprint(); len(fp) > 0 {
			id, err := id16("fingerprint", fp)
			if err != nil {
				return nil, err
			}
			v.Fingerprint = id
		}
		out[i] = v
	}
	return out, nil
}

func problemsToWire(problems []backup.Problem) []*bctlv1.Problem {
	out := make([]*bctlv1.Problem, len(problems))
	for i, p := range problems {
		out[i] = &bctlv1.Problem{Path: []byte(p.Path), Op: text(p.Op), Error: text(p.Err)}
	}
	return out
}

func problemsFromWire(problems []*bctlv1.Problem) []backup.Problem {
	if len(problems) == 0 {
		return nil
	}
	out := make([]backup.Problem, len(problems))
	for i, p := range problems {
		out[i] = backup.Problem{Path: string(p.GetPath()), Op: p.GetOp(), Err: p.GetError()}
	}
	return out
}

func countsToWire(c *backup.Counts) *bctlv1.Counts {
	return &bctlv1.Counts{
		Files: c.Files, Directories: c.Directories, Bytes: c.Bytes,
		FilesNew: c.FilesNew, FilesChanged: c.FilesChanged, FilesUnchanged: c.FilesUnchanged,
		StatCalls: c.StatCalls, NewBytes: c.NewBytes, StoredBytes: c.StoredBytes, ReadBytes: c.ReadBytes, Errors: c.Errors,
		Vanished: c.Vanished, Carried: c.Carried, Torn: c.Torn,
		WalkSeconds: c.WalkSeconds, ReadSeconds: c.ReadSeconds, HashSeconds: c.HashSeconds,
		CompressSeconds: c.CompressSeconds, SealSeconds: c.SealSeconds, UploadSeconds: c.UploadSeconds, CommitSeconds: c.CommitSeconds,
	}
}

func countsFromWire(m *bctlv1.Counts) (backup.Counts, error) {
	c := backup.Counts{
		Files: m.GetFiles(), Directories: m.GetDirectories(), Bytes: m.GetBytes(),
		FilesNew: m.GetFilesNew(), FilesChanged: m.GetFilesChanged(), FilesUnchanged: m.GetFilesUnchanged(),
		StatCalls: m.GetStatCalls(), NewBytes: m.GetNewBytes(), StoredBytes: m.GetStoredBytes(), ReadBytes: m.GetReadBytes(), Errors: m.GetErrors(),
		Vanished: m.GetVanished(), Carried: m.GetCarried(), Torn: m.GetTorn(),
		WalkSeconds: m.GetWalkSeconds(), ReadSeconds: m.GetReadSeconds(), HashSeconds: m.GetHashSeconds(),
		CompressSeconds: m.GetCompressSeconds(), SealSeconds: m.GetSealSeconds(), UploadSeconds: m.GetUploadSeconds(), CommitSeconds: m.GetCommitSeconds(),
	}
	// One NaN or infinite result would make the sum of the whole snapshot useless.
	sum := c.WalkSeconds + c.ReadSeconds + c.HashSeconds + c.CompressSeconds + c.SealSeconds + c.UploadSeconds + c.CommitSeconds
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		return c, fmt.Errorf("counts of %f seconds: %w", sum, backup.ErrInvalid)
	}
	return c, nil
}
