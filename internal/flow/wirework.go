package flow

import (
	"fmt"
	"math"

	"github.com/bctl/bctl/internal/backup"
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
	if err := unmarshal(data, &m); err != nil {
		return nil, err
	}
	job, err := jobFromWire(m.GetJob())
	if err != nil {
		return nil, err
	}
	dirs, err := pathsFromWire(m.GetDirectories())
	if err != nil {
		return nil, err
	}
	mounts, err := pathsFromWire(m.GetMounts())
	if err != nil {
		return nil, err
	}
	return &backup.WalkTask{
		Job: job, ID: backup.TaskID(m.GetTask()), Attempt: m.GetAttempt(), Generation: m.GetGeneration(), Directories: dirs, Mounts: mounts, Scarce: m.GetScarce(),
	}, nil
}

func encodeReadBatch(b *backup.ReadBatch) ([]byte, error) {
	return marshal(&bctlv1.ReadBatch{Job: jobToWire(&b.Job), Batch: int64(b.ID), Attempt: b.Attempt, Pages: pagesToWire(b.Pages), Mounts: bytesOf(b.Mounts)})
}

func decodeReadBatch(data []byte) (*backup.ReadBatch, error) {
	var m bctlv1.ReadBatch
	if err := unmarshal(data, &m); err != nil {
		return nil, err
	}
	job, err := jobFromWire(m.GetJob())
	if err != nil {
		return nil, err
	}
	b := &backup.ReadBatch{Job: job, ID: backup.BatchID(m.GetBatch()), Attempt: m.GetAttempt()}
	b.PagesToRead, err = pagesToReadFromWire(m.GetPages(), m.GetMounts())
	return b, err
}

func pagesToReadFromWire(pages []*bctlv1.Page, mounts [][]byte) (p backup.PagesToRead, err error) {
	if p.Pages, err = pagesFromWire(pages); err != nil {
		return p, err
	}
	p.Mounts, err = pathsFromWire(mounts)
	return p, err
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
	if err := unmarshal(data, &m); err != nil {
		return nil, err
	}
	id, err := id16("snapshot id", m.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	s := &backup.SliceWalked{
		Snapshot: id, Task: backup.TaskID(m.GetTask()), Attempt: m.GetAttempt(), Part: m.GetPart(), Last: m.GetLast(),
		Problems: problemsFromWire(m.GetProblems()), Failed: m.GetFailed(), Run: m.GetRun(), Source: m.GetSource(),
	}
	if s.Root, err = backup.ParseRoot(m.GetRoot()); err != nil {
		return nil, err
	}
	if s.Counts, err = countsFromWire(m.GetCounts()); err != nil {
		return nil, err
	}
	if s.Part < 0 {
		return nil, fmt.Errorf("part %d: %w", s.Part, backup.ErrInvalid)
	}
	if s.Pages, err = pagesFromWire(m.GetPages()); err != nil {
		return nil, err
	}
	if s.Removed, err = pathsFromWire(m.GetRemoved()); err != nil {
		return nil, err
	}
	for _, e := range m.GetEnded() {
		if err := backup.CheckPath(string(e.GetPath())); err != nil {
			return nil, err
		}
		if e.GetKey() < 0 {
			return nil, fmt.Errorf("page %d of %q: %w", e.GetKey(), e.GetPath(), backup.ErrInvalid)
		}
		s.Ended = append(s.Ended, backup.PageName{Path: string(e.GetPath()), Key: backup.PageKey(e.GetKey())})
	}
	return s, workFromWire(s, &m)
}

// workFromWire decodes the batches and child tasks of a result. It refuses empty ones: a message
// full of them would take much memory.
func workFromWire(s *backup.SliceWalked, m *bctlv1.SliceWalked) error {
	for _, b := range m.GetBatches() {
		pages, err := pagesToReadFromWire(b.GetPages(), b.GetMounts())
		if err == nil && len(pages.Pages) == 0 {
			err = fmt.Errorf("a batch without pages: %w", backup.ErrInvalid)
		}
		if err != nil {
			return err
		}
		s.Batches = append(s.Batches, pages)
	}
	for _, c := range m.GetChildren() {
		dirs, err := pathsFromWire(c.GetDirectories())
		if err == nil && len(dirs) == 0 {
			err = fmt.Errorf("a child task without directories: %w", backup.ErrInvalid)
		}
		if err != nil {
			return err
		}
		mounts, err := pathsFromWire(c.GetMounts())
		if err != nil {
			return err
		}
		s.Children = append(s.Children, backup.Child{Directories: dirs, Mounts: mounts})
	}
	return nil
}

func encodePackStored(p *backup.PackStored) ([]byte, error) {
	m := &bctlv1.PackStored{SnapshotId: p.Snapshot[:], Pack: p.Pack[:], StoredBytes: p.StoredBytes, FrameBytes: p.FrameBytes}
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
	if err := unmarshal(data, &m); err != nil {
		return nil, err
	}
	snapshot, err := id16("snapshot id", m.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	pack, err := id16("pack", m.GetPack())
	if err != nil {
		return nil, err
	}
	n := len(m.GetFrames())
	if len(m.GetLengths()) != n || len(m.GetChunkIds()) != n*len(backup.ChunkID{}) || m.GetStoredBytes() <= 0 {
		return nil, fmt.Errorf("pack table of %d frames, %d lengths, %d bytes of ids: %w", n, len(m.GetLengths()), len(m.GetChunkIds()), backup.ErrInvalid)
	}
	p := &backup.PackStored{Snapshot: snapshot, Pack: pack, StoredBytes: m.GetStoredBytes(), FrameBytes: m.GetFrameBytes()}
	if n > 0 && int64(m.GetFrames()[n-1]) >= int64(len(p.FrameBytes)) {
		return nil, fmt.Errorf("pack table of %d frames has a chunk in frame %d: %w", len(p.FrameBytes), m.GetFrames()[n-1], backup.ErrInvalid)
	}
	frameBytes := int64(0)
	for _, length := range p.FrameBytes {
		frameBytes += int64(length)
	}
	if frameBytes > p.StoredBytes {
		return nil, fmt.Errorf("frames of %d bytes in a pack of %d: %w", frameBytes, p.StoredBytes, backup.ErrInvalid)
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
	if err := unmarshal(data, &m); err != nil {
		return nil, err
	}
	snapshot, err := id16("snapshot id", m.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	l := &backup.ListsStored{Snapshot: snapshot}
	for _, list := range m.GetLists() {
		id, err := id16("list", list.GetList())
		if err != nil {
			return nil, err
		}
		raw := list.GetChunkIds()
		if len(raw)%len(id) != 0 || len(raw) == 0 {
			return nil, fmt.Errorf("list of %d bytes of ids: %w", len(raw), backup.ErrInvalid)
		}
		chunks := make([]backup.ChunkID, len(raw)/len(id))
		for i := range chunks {
			chunks[i] = backup.ChunkID(raw[i*len(id):])
		}
		l.Lists = append(l.Lists, backup.ChunkList{List: id, Nested: list.GetNested(), Chunks: chunks})
	}
	return l, nil
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
	if err := unmarshal(data, &m); err != nil {
		return nil, err
	}
	id, err := id16("snapshot id", m.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	b := &backup.BatchStored{
		Snapshot: id, Batch: backup.BatchID(m.GetBatch()), Attempt: m.GetAttempt(),
		Problems: problemsFromWire(m.GetProblems()), Failed: m.GetFailed(),
	}
	if b.Counts, err = countsFromWire(m.GetCounts()); err != nil {
		return nil, err
	}
	if b.Pages, err = pagesFromWire(m.GetPages()); err != nil {
		return nil, err
	}
	for _, raw := range m.GetReliesOn() {
		pack, err := id16("pack", raw)
		if err != nil {
			return nil, err
		}
		b.ReliesOn = append(b.ReliesOn, pack)
	}
	return b, nil
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

func int64s[T ~int64](ids []T) []int64 {
	list := make([]int64, len(ids))
	for i, id := range ids {
		list[i] = int64(id)
	}
	return list
}

func idsOf[T ~int64](list []int64) []T {
	if len(list) == 0 {
		return nil
	}
	ids := make([]T, len(list))
	for i, id := range list {
		ids[i] = T(id)
	}
	return ids
}

// Limits of one report of an honest worker. Listeners keep reports for a while.
const (
	maxWorkerBytes = 1 << 10
	maxReported    = 16 << 10 // tasks in progress, and as many batches
)

func decodeProgress(data []byte) (*backup.Progress, error) {
	var m bctlv1.Progress
	if err := unmarshal(data, &m); err != nil {
		return nil, err
	}
	most := max(len(m.GetTasks()), len(m.GetBatches()), len(m.GetStalledTasks()), len(m.GetStalledBatches()))
	if most > maxReported || len(m.GetWorker()) > maxWorkerBytes || len(m.GetPath()) > backup.MaxPathBytes {
		return nil, fmt.Errorf("progress: %d in hand, a worker's name of %d bytes, at a path of %d: %w", most, len(m.GetWorker()), len(m.GetPath()), backup.ErrInvalid)
	}
	if !isInstance(m.GetInstance()) {
		return nil, fmt.Errorf("progress: instance %.100q: %w", m.GetInstance(), backup.ErrInvalid)
	}
	id, err := id16("snapshot id", m.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	if !(m.GetStatSeconds() >= 0 && m.GetOpenSeconds() >= 0) || m.GetStats() < 0 || m.GetOpens() < 0 {
		return nil, fmt.Errorf("progress: %d stats in %v s, %d opens in %v s: %w", m.GetStats(), m.GetStatSeconds(), m.GetOpens(), m.GetOpenSeconds(), backup.ErrInvalid)
	}
	return &backup.Progress{
		Worker: m.GetWorker(), Instance: m.GetInstance(), Snapshot: id, Path: string(m.GetPath()), Errors: m.GetErrors(),
		FilesFound: m.GetFilesFound(), BytesFound: m.GetBytesFound(), FilesDone: m.GetFilesDone(), BytesDone: m.GetBytesDone(),
		Tasks: idsOf[backup.TaskID](m.GetTasks()), Batches: idsOf[backup.BatchID](m.GetBatches()),
		StalledTasks: idsOf[backup.TaskID](m.GetStalledTasks()), StalledBatches: idsOf[backup.BatchID](m.GetStalledBatches()),
		Filer: backup.FilerID(m.GetFilerId()), Stats: m.GetStats(), StatSeconds: m.GetStatSeconds(),
		Opens: m.GetOpens(), OpenSeconds: m.GetOpenSeconds(),
	}, nil
}
