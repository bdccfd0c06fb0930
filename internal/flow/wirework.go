package flow

import (
	"fmt"
	"math"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

func encodeWalkTask(t *backup.WalkTask) ([]byte, error) {
	return marshal(&bctlv1.WalkTask{
		Job: jobToWire(&t.Job), Task: int64(t.ID), Attempt: t.Attempt, Generation: t.Generation,
		Directories: bytesOf(t.Directories), Mounts: bytesOf(t.Mounts), Scarce: t.Scarce,
	})
}

func decodeWalkTask(data []byte) (*backup.WalkTask, error) {
	var m bctlv1.WalkTask
	c := checked(data, &m)
	return &backup.WalkTask{
		Job: c.job(m.GetJob()), ID: backup.TaskID(m.GetTask()), Attempt: m.GetAttempt(), Generation: m.GetGeneration(),
		Directories: c.paths(m.GetDirectories()), Mounts: c.paths(m.GetMounts()), Scarce: m.GetScarce(),
	}, c.err
}

func encodeReadBatch(b *backup.ReadBatch) ([]byte, error) {
	return marshal(&bctlv1.ReadBatch{Job: jobToWire(&b.Job), Batch: int64(b.ID), Attempt: b.Attempt, Pages: pagesToWire(b.Pages), Mounts: bytesOf(b.Mounts)})
}

func decodeReadBatch(data []byte) (*backup.ReadBatch, error) {
	var m bctlv1.ReadBatch
	c := checked(data, &m)
	return &backup.ReadBatch{
		Job: c.job(m.GetJob()), ID: backup.BatchID(m.GetBatch()), Attempt: m.GetAttempt(),
		PagesToRead: backup.PagesToRead{Pages: c.pages(m.GetPages()), Mounts: c.paths(m.GetMounts())},
	}, c.err
}

func encodeSliceWalked(s *backup.SliceWalked) ([]byte, error) {
	m := &bctlv1.SliceWalked{
		SnapshotId: s.Snapshot[:], Task: int64(s.Task), Attempt: s.Attempt, Part: s.Part, Last: s.Last,
		Pages: pagesToWire(s.Pages), Removed: bytesOf(s.Removed),
		Counts: countsToWire(&s.Counts), Problems: problemsToWire(s.Problems), Failed: text(s.Failed), Run: s.Run, Source: text(s.Source), Root: s.Root.String(),
	}
	for _, e := range s.Ended {
		m.Ended = append(m.Ended, &bctlv1.PageName{Path: []byte(e.Path), Key: int64(e.Key)})
	}
	for _, b := range s.Batches {
		m.Batches = append(m.Batches, &bctlv1.SliceWalked_Batch{Pages: pagesToWire(b.Pages), Mounts: bytesOf(b.Mounts)})
	}
	for _, c := range s.Children {
		m.Children = append(m.Children, &bctlv1.SliceWalked_Child{Directories: bytesOf(c.Directories), Mounts: bytesOf(c.Mounts)})
	}
	return marshal(m)
}

func decodeSliceWalked(data []byte) (*backup.SliceWalked, error) {
	var m bctlv1.SliceWalked
	c := checked(data, &m)
	if m.GetPart() < 0 {
		c.fail("part %d", m.GetPart())
	}
	s := &backup.SliceWalked{
		Snapshot: c.id("snapshot id", m.GetSnapshotId()), Task: backup.TaskID(m.GetTask()), Attempt: m.GetAttempt(), Part: m.GetPart(), Last: m.GetLast(),
		Root: c.root(m.GetRoot()), Counts: c.counts(m.GetCounts()), Pages: c.pages(m.GetPages()), Removed: c.paths(m.GetRemoved()),
		Problems: problemsFromWire(m.GetProblems()), Failed: m.GetFailed(), Run: m.GetRun(), Source: m.GetSource(),
	}
	s.Ended = all(c, m.GetEnded(), func(e *bctlv1.PageName) backup.PageName {
		if e.GetKey() < 0 {
			c.fail("page %d of %q", e.GetKey(), e.GetPath())
		}
		return backup.PageName{Path: c.path(e.GetPath()), Key: backup.PageKey(e.GetKey())}
	})
	s.Batches = all(c, m.GetBatches(), func(b *bctlv1.SliceWalked_Batch) backup.PagesToRead {
		if len(b.GetPages()) == 0 {
			c.fail("a batch without pages")
		}
		return backup.PagesToRead{Pages: c.pages(b.GetPages()), Mounts: c.paths(b.GetMounts())}
	})
	s.Children = all(c, m.GetChildren(), func(child *bctlv1.SliceWalked_Child) backup.Child {
		if len(child.GetDirectories()) == 0 {
			c.fail("a child task without directories")
		}
		return backup.Child{Directories: c.paths(child.GetDirectories()), Mounts: c.paths(child.GetMounts())}
	})
	return s, c.err
}

func encodePackStored(p *backup.PackStored) ([]byte, error) {
	m := &bctlv1.PackStored{SnapshotId: p.Snapshot[:], Pack: p.Pack[:], StoredBytes: p.StoredBytes, FrameBytes: p.FrameBytes, Sums: p.Sums}
	m.ChunkIds = make([]byte, 0, len(p.Chunks)*len(backup.ChunkID{}))
	for i := range p.Chunks {
		c := &p.Chunks[i]
		m.ChunkIds = append(m.ChunkIds, c.ID[:]...)
		m.Frames = append(m.Frames, c.Frame)
		m.Lengths = append(m.Lengths, c.Length)
	}
	return marshal(m)
}

func decodePackStored(data []byte) (*backup.PackStored, error) {
	var m bctlv1.PackStored
	c := checked(data, &m)
	p := &backup.PackStored{
		Snapshot: c.id("snapshot id", m.GetSnapshotId()), Pack: c.id("pack", m.GetPack()), StoredBytes: m.GetStoredBytes(), FrameBytes: m.GetFrameBytes(), Sums: m.GetSums(),
	}
	n := len(m.GetFrames())
	if len(m.GetLengths()) != n || len(m.GetChunkIds()) != n*len(backup.ChunkID{}) || p.StoredBytes <= 0 {
		c.fail("pack table of %d frames, %d lengths, %d bytes of ids", n, len(m.GetLengths()), len(m.GetChunkIds()))
	}
	if n > 0 && int64(m.GetFrames()[n-1]) >= int64(len(p.FrameBytes)) {
		c.fail("pack table of %d frames has a chunk in frame %d", len(p.FrameBytes), m.GetFrames()[n-1])
	}
	if len(p.Sums) > 0 && !pack.Sums(p.Sums).Fit(len(p.FrameBytes)) {
		c.fail("%d bytes of checksums for %d frames", len(p.Sums), len(p.FrameBytes))
	}
	frameBytes := int64(0)
	for _, length := range p.FrameBytes {
		frameBytes += int64(length)
	}
	if frameBytes > p.StoredBytes {
		c.fail("frames of %d bytes in a pack of %d", frameBytes, p.StoredBytes)
	}
	if c.err != nil {
		return nil, c.err
	}
	if n > 0 {
		p.Chunks = make([]backup.ChunkPlace, n)
	}
	offset := uint64(0)
	for i := range p.Chunks {
		frame := m.GetFrames()[i]
		if i == 0 || frame != p.Chunks[i-1].Frame {
			offset = 0
		}
		if i > 0 && frame < p.Chunks[i-1].Frame || offset > math.MaxUint32 {
			return nil, fmt.Errorf("pack table: frame %d at %d: %w", frame, i, backup.ErrInvalid)
		}
		length := m.GetLengths()[i]
		p.Chunks[i] = backup.ChunkPlace{ID: backup.ChunkID(m.GetChunkIds()[i*16 : i*16+16]), Frame: frame, Offset: uint32(offset), Length: length}
		offset += uint64(length)
	}
	return p, nil
}

func encodeListsStored(l *backup.ListsStored) ([]byte, error) {
	m := &bctlv1.ListsStored{SnapshotId: l.Snapshot[:]}
	for i := range l.Lists {
		list := &l.Lists[i]
		ids := make([]byte, 0, len(list.Chunks)*len(backup.ChunkID{}))
		for j := range list.Chunks {
			ids = append(ids, list.Chunks[j][:]...)
		}
		m.Lists = append(m.Lists, &bctlv1.ListsStored_List{List: list.List[:], Nested: list.Nested, ChunkIds: ids})
	}
	return marshal(m)
}

func decodeListsStored(data []byte) (*backup.ListsStored, error) {
	var m bctlv1.ListsStored
	c := checked(data, &m)
	l := &backup.ListsStored{Snapshot: c.id("snapshot id", m.GetSnapshotId())}
	l.Lists = all(c, m.GetLists(), func(list *bctlv1.ListsStored_List) backup.ChunkList {
		const idBytes = len(backup.ChunkID{})
		raw := list.GetChunkIds()
		if len(raw)%idBytes != 0 || len(raw) == 0 {
			c.fail("list of %d bytes of ids", len(raw))
		}
		chunks := make([]backup.ChunkID, len(raw)/idBytes)
		for i := range chunks {
			chunks[i] = backup.ChunkID(raw[i*idBytes:])
		}
		return backup.ChunkList{List: c.id("list", list.GetList()), Nested: list.GetNested(), Chunks: chunks}
	})
	return l, c.err
}

func encodeBatchStored(b *backup.BatchStored) ([]byte, error) {
	m := &bctlv1.BatchStored{
		SnapshotId: b.Snapshot[:], Batch: int64(b.Batch), Attempt: b.Attempt,
		Pages: pagesToWire(b.Pages), Counts: countsToWire(&b.Counts), Problems: problemsToWire(b.Problems), Failed: text(b.Failed),
	}
	for i := range b.ReliesOn {
		m.ReliesOn = append(m.ReliesOn, b.ReliesOn[i][:])
	}
	return marshal(m)
}

func decodeBatchStored(data []byte) (*backup.BatchStored, error) {
	var m bctlv1.BatchStored
	c := checked(data, &m)
	return &backup.BatchStored{
		Snapshot: c.id("snapshot id", m.GetSnapshotId()), Batch: backup.BatchID(m.GetBatch()), Attempt: m.GetAttempt(),
		Counts: c.counts(m.GetCounts()), Pages: c.pages(m.GetPages()), Problems: problemsFromWire(m.GetProblems()), Failed: m.GetFailed(),
		ReliesOn: all(c, m.GetReliesOn(), func(raw []byte) backup.PackID { return c.id("pack", raw) }),
	}, c.err
}

func encodeProgress(p *backup.Progress) ([]byte, error) {
	m := &bctlv1.Progress{
		Worker: text(p.Worker), Instance: p.Instance, SnapshotId: p.Snapshot[:], Path: []byte(p.Path), Errors: p.Errors,
		FilesFound: p.FilesFound, BytesFound: p.BytesFound, FilesDone: p.FilesDone, BytesDone: p.BytesDone,
		FilerId: int64(p.Filer), Stats: p.Stats, StatSeconds: p.StatSeconds, Opens: p.Opens, OpenSeconds: p.OpenSeconds,
		Tasks: int64s(p.Tasks), Batches: int64s(p.Batches), StalledTasks: int64s(p.StalledTasks), StalledBatches: int64s(p.StalledBatches),
	}
	return marshal(m)
}

func int64s[T ~int64](ids []T) []int64 { return convert(ids, func(id T) int64 { return int64(id) }) }
func idsOf[T ~int64](list []int64) []T { return convert(list, func(id int64) T { return T(id) }) }

const (
	maxWorkerBytes = 1 << 10
	maxReported    = 16 << 10 // tasks in progress, and as many batches
)

func decodeProgress(data []byte) (*backup.Progress, error) {
	var m bctlv1.Progress
	c := checked(data, &m)
	most := max(len(m.GetTasks()), len(m.GetBatches()), len(m.GetStalledTasks()), len(m.GetStalledBatches()))
	if most > maxReported || len(m.GetWorker()) > maxWorkerBytes || len(m.GetPath()) > backup.MaxPathBytes {
		c.fail("progress: %d tasks or batches in progress, a worker's name of %d bytes, a path of %d bytes", most, len(m.GetWorker()), len(m.GetPath()))
	}
	if !isInstance(m.GetInstance()) {
		c.fail("progress: instance %.100q", m.GetInstance())
	}
	if !(m.GetStatSeconds() >= 0 && m.GetOpenSeconds() >= 0) || m.GetStats() < 0 || m.GetOpens() < 0 {
		c.fail("progress: %d stats in %v s, %d opens in %v s", m.GetStats(), m.GetStatSeconds(), m.GetOpens(), m.GetOpenSeconds())
	}
	return &backup.Progress{
		Worker: m.GetWorker(), Instance: m.GetInstance(), Snapshot: c.id("snapshot id", m.GetSnapshotId()), Path: string(m.GetPath()), Errors: m.GetErrors(),
		FilesFound: m.GetFilesFound(), BytesFound: m.GetBytesFound(), FilesDone: m.GetFilesDone(), BytesDone: m.GetBytesDone(),
		Tasks: idsOf[backup.TaskID](m.GetTasks()), Batches: idsOf[backup.BatchID](m.GetBatches()),
		StalledTasks: idsOf[backup.TaskID](m.GetStalledTasks()), StalledBatches: idsOf[backup.BatchID](m.GetStalledBatches()),
		Filer: backup.FilerID(m.GetFilerId()), Stats: m.GetStats(), StatSeconds: m.GetStatSeconds(),
		Opens: m.GetOpens(), OpenSeconds: m.GetOpenSeconds(),
	}, c.err
}
