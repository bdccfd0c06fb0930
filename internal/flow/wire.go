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

// convert returns the converted elements of a list; nil for an empty one.
func convert[T, U any](list []T, to func(T) U) []U {
	if len(list) == 0 {
		return nil
	}
	out := make([]U, len(list))
	for i, v := range list {
		out[i] = to(v)
	}
	return out
}

func bytesOf(texts []string) [][]byte {
	return convert(texts, func(s string) []byte { return []byte(s) })
}
func stringsOf(texts [][]byte) []string {
	return convert(texts, func(b []byte) string { return string(b) })
}

// A checker converts received values. It keeps the first error, and its results are valid if there
// is none.
type checker struct{ err error }

// checked unmarshals a message whose values are to be converted.
func checked(data []byte, m proto.Message) *checker { return &checker{unmarshal(data, m)} }

// all converts a list, up to the first error.
func all[T, U any](c *checker, list []T, to func(T) U) []U {
	if c.err != nil || len(list) == 0 {
		return nil
	}
	out := make([]U, len(list))
	for i := 0; i < len(list) && c.err == nil; i++ {
		out[i] = to(list[i])
	}
	return out
}

func (c *checker) fail(format string, args ...any) {
	c.keep(fmt.Errorf(format+": %w", append(args, backup.ErrInvalid)...))
}

func (c *checker) keep(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *checker) id(what string, b []byte) (id [16]byte) {
	if len(b) != len(id) {
		c.fail("%s of %d bytes", what, len(b))
	}
	copy(id[:], b)
	return id
}

func (c *checker) root(text string) backup.Root {
	root, err := backup.ParseRoot(text)
	c.keep(err)
	return root
}

func (c *checker) path(raw []byte) string {
	path := string(raw)
	c.keep(backup.CheckPath(path))
	return path
}

func (c *checker) paths(raw [][]byte) []string { return all(c, raw, c.path) }

func jobToWire(j *backup.Job) *bctlv1.Job {
	return &bctlv1.Job{
		SnapshotId: j.Snapshot[:], FilerId: int64(j.Filer), ShardId: int64(j.Shard), FilerName: text(j.FilerName), ShardName: text(j.ShardName),
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

func (c *checker) job(m *bctlv1.Job) backup.Job {
	if m.GetNumber() < 1 || m.GetBase() < 0 || m.GetBase() >= m.GetNumber() {
		c.fail("snapshot %d based on %d", m.GetNumber(), m.GetBase())
	}
	if m.GetStartedNanos() > 999_999_999 {
		c.fail("start at %d nanoseconds", m.GetStartedNanos())
	}
	if m.GetCompare() > uint32(backup.CompareAll) {
		c.keep(fmt.Errorf("job: compare %d: %w: %w", m.GetCompare(), errNewer, backup.ErrInvalid))
	}
	if m.GetReadBytesPerSecond() < 0 {
		c.fail("job: %d bytes/s", m.GetReadBytesPerSecond())
	}
	return backup.Job{
		Root: c.root(m.GetRoot()), AllowShrink: m.GetAllowShrink(), NewRoot: m.GetNewRoot(), Interrupted: m.GetInterrupted(),
		Snapshots: m.GetSnapshots(), Compare: backup.Compare(m.GetCompare()), Site: m.GetSite(), ReadBytesPerSecond: m.GetReadBytesPerSecond(),
		Snapshot: c.id("snapshot id", m.GetSnapshotId()), Filer: backup.FilerID(m.GetFilerId()), Shard: backup.ShardID(m.GetShardId()),
		FilerName: m.GetFilerName(), ShardName: m.GetShardName(),
		Number: backup.SnapshotNumber(m.GetNumber()), Base: backup.SnapshotNumber(m.GetBase()),
		Started: backup.Time{Sec: m.GetStartedSeconds(), Nsec: m.GetStartedNanos()}, Source: m.GetSource(),
		Selection: backup.Selection{
			Exclude: stringsOf(m.GetSelection().GetExclude()), ExcludeIfPresent: stringsOf(m.GetSelection().GetExcludeIfPresent()),
			OneFileSystem: m.GetSelection().GetOneFileSystem(), ExcludeLargerBytes: m.GetSelection().GetExcludeLargerBytes(),
		},
	}
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

func (c *checker) pages(pages []*bctlv1.Page) []backup.PageVersion { return all(c, pages, c.page) }

func (c *checker) page(p *bctlv1.Page) backup.PageVersion {
	v := backup.PageVersion{Path: c.path(p.GetPath()), Key: backup.PageKey(p.GetKey()), Inode: p.GetInode(), Listing: p.GetListing()}
	if v.Key < 0 || len(v.Listing) == 0 {
		c.fail("page %d of %q, %d bytes", v.Key, v.Path, len(v.Listing))
	}
	if fp := p.GetFingerprint(); len(fp) > 0 {
		v.Fingerprint = c.id("fingerprint", fp)
	}
	return v
}

func problemsToWire(problems []backup.Problem) []*bctlv1.Problem {
	return convert(problems, func(p backup.Problem) *bctlv1.Problem {
		return &bctlv1.Problem{Path: []byte(p.Path), Op: text(p.Op), Error: text(p.Err)}
	})
}

func problemsFromWire(problems []*bctlv1.Problem) []backup.Problem {
	return convert(problems, func(p *bctlv1.Problem) backup.Problem {
		return backup.Problem{Path: string(p.GetPath()), Op: p.GetOp(), Err: p.GetError()}
	})
}

func countsToWire(c *backup.Counts) *bctlv1.Counts {
	return &bctlv1.Counts{
		Files: c.Files, Directories: c.Directories, Bytes: c.Bytes,
		FilesNew: c.FilesNew, FilesChanged: c.FilesChanged, FilesUnchanged: c.FilesUnchanged,
		StatCalls: c.StatCalls, NewBytes: c.NewBytes, StoredBytes: c.StoredBytes, ReadBytes: c.ReadBytes, Errors: c.Errors,
		Vanished: c.Vanished, Carried: c.Carried, Torn: c.Torn,
		FilesJudged: c.FilesJudged, FilesRenamed: c.FilesRenamed, TypesLost: c.TypesLost, FilesOpaque: c.FilesOpaque,
		WalkSeconds: c.WalkSeconds, ReadSeconds: c.ReadSeconds, HashSeconds: c.HashSeconds,
		CompressSeconds: c.CompressSeconds, SealSeconds: c.SealSeconds, UploadSeconds: c.UploadSeconds, CommitSeconds: c.CommitSeconds,
	}
}

func (c *checker) counts(m *bctlv1.Counts) backup.Counts {
	n := backup.Counts{
		Files: m.GetFiles(), Directories: m.GetDirectories(), Bytes: m.GetBytes(),
		FilesNew: m.GetFilesNew(), FilesChanged: m.GetFilesChanged(), FilesUnchanged: m.GetFilesUnchanged(),
		StatCalls: m.GetStatCalls(), NewBytes: m.GetNewBytes(), StoredBytes: m.GetStoredBytes(), ReadBytes: m.GetReadBytes(), Errors: m.GetErrors(),
		Vanished: m.GetVanished(), Carried: m.GetCarried(), Torn: m.GetTorn(),
		FilesJudged: m.GetFilesJudged(), FilesRenamed: m.GetFilesRenamed(), TypesLost: m.GetTypesLost(), FilesOpaque: m.GetFilesOpaque(),
		WalkSeconds: m.GetWalkSeconds(), ReadSeconds: m.GetReadSeconds(), HashSeconds: m.GetHashSeconds(),
		CompressSeconds: m.GetCompressSeconds(), SealSeconds: m.GetSealSeconds(), UploadSeconds: m.GetUploadSeconds(), CommitSeconds: m.GetCommitSeconds(),
	}
	// One NaN or infinite result would make the sum of the whole snapshot useless.
	sum := n.WalkSeconds + n.ReadSeconds + n.HashSeconds + n.CompressSeconds + n.SealSeconds + n.UploadSeconds + n.CommitSeconds
	if math.IsNaN(sum) || math.IsInf(sum, 0) {
		c.fail("counts of %f seconds", sum)
	}
	return n
}
