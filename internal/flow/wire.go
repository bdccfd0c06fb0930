package flow

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/bctl/bctl/internal/backup"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// The wire form of every message: backup's types to protobuf and back. What
// comes from the wire is checked here, once: lengths of ids, paths, counts.

func marshal(m proto.Message) ([]byte, error) { return proto.MarshalOptions{}.Marshal(m) }

// unmarshal reports any error as backup.ErrInvalid: the same bytes will never do.
func unmarshal(data []byte, m proto.Message) error {
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
		StartedSeconds: j.Started.Sec, StartedNanos: j.Started.Nsec, Source: j.Source,
		Selection: &bctlv1.Selection{
			Exclude: j.Selection.Exclude, ExcludeIfPresent: j.Selection.ExcludeIfPresent,
			OneFileSystem: j.Selection.OneFileSystem, ExcludeLargerBytes: j.Selection.ExcludeLargerBytes,
		},
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
	return backup.Job{
		Snapshot: id, Filer: backup.FilerID(m.GetFilerId()), Shard: backup.ShardID(m.GetShardId()),
		Number: backup.SnapshotNumber(m.GetNumber()), Base: backup.SnapshotNumber(m.GetBase()),
		Started: backup.Time{Sec: m.GetStartedSeconds(), Nsec: m.GetStartedNanos()}, Source: m.GetSource(),
		Selection: backup.Selection{
			Exclude: m.GetSelection().GetExclude(), ExcludeIfPresent: m.GetSelection().GetExcludeIfPresent(),
			OneFileSystem: m.GetSelection().GetOneFileSystem(), ExcludeLargerBytes: m.GetSelection().GetExcludeLargerBytes(),
		},
	}, nil
}

func pathsToWire(paths []string) [][]byte {
	out := make([][]byte, len(paths))
	for i, p := range paths {
		out[i] = []byte(p)
	}
	return out
}

func pathsFromWire(paths [][]byte) ([]string, error) {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = string(p)
		if err := backup.CheckPath(out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
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
		out[i] = &bctlv1.Problem{Path: []byte(p.Path), Op: p.Op, Error: p.Err}
	}
	return out
}

func problemsFromWire(problems []*bctlv1.Problem) []backup.Problem {
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
		WalkSeconds: c.WalkSeconds, ReadSeconds: c.ReadSeconds, HashSeconds: c.HashSeconds,
		CompressSeconds: c.CompressSeconds, SealSeconds: c.SealSeconds, UploadSeconds: c.UploadSeconds, CommitSeconds: c.CommitSeconds,
	}
}

func countsFromWire(m *bctlv1.Counts) backup.Counts {
	return backup.Counts{
		Files: m.GetFiles(), Directories: m.GetDirectories(), Bytes: m.GetBytes(),
		FilesNew: m.GetFilesNew(), FilesChanged: m.GetFilesChanged(), FilesUnchanged: m.GetFilesUnchanged(),
		StatCalls: m.GetStatCalls(), NewBytes: m.GetNewBytes(), StoredBytes: m.GetStoredBytes(), ReadBytes: m.GetReadBytes(), Errors: m.GetErrors(),
		WalkSeconds: m.GetWalkSeconds(), ReadSeconds: m.GetReadSeconds(), HashSeconds: m.GetHashSeconds(),
		CompressSeconds: m.GetCompressSeconds(), SealSeconds: m.GetSealSeconds(), UploadSeconds: m.GetUploadSeconds(), CommitSeconds: m.GetCommitSeconds(),
	}
}
