package read

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// answer waits until each pack that the batch relies on is durable, and then reports to the
// committer: data first, index second (I1).
func (b *batch) answer(ctx context.Context) error {
	m := &backup.BatchStored{Snapshot: b.msg.Job.Snapshot, Batch: b.msg.ID, Attempt: b.msg.Attempt, Problems: b.problems}
	for ref := range b.packs {
		if err := b.svc.packer.await(ctx, m.Snapshot, ref); err != nil {
			return err
		}
		if !slices.Contains(m.ReliesOn, ref.id) {
			m.ReliesOn = append(m.ReliesOn, ref.id)
		}
	}
	if err := b.reportLists(ctx); err != nil {
		return err
	}
	m.Counts = b.counts
	m.Counts.Add(b.stage)
	m.Counts.UploadSeconds += time.Duration(b.svc.packer.uploadNanos.Swap(0)).Seconds()
	m.Pages = b.complete
	if err := b.svc.sendBatch(ctx, m); err != nil {
		return err
	}
	b.svc.opts.Metrics.Batch(m, time.Since(b.started))
	return nil
}

// fail reports to the committer that the batch can never be read.
func (b *batch) fail(ctx context.Context, cause error) error {
	return b.svc.sendBatch(ctx, &backup.BatchStored{
		Snapshot: b.msg.Job.Snapshot, Batch: b.msg.ID, Attempt: b.msg.Attempt,
		Failed: fmt.Sprintf("cannot read %s: %v", b.msg.Job.Source, cause),
	})
}

// listMessageBytes is the approximate size of the chunk ids in one message.
const listMessageBytes = 400 << 10

// noteList records the content of a list chunk, to be reported to the committer. It is reported in
// each attempt, even if the chunk is stored already: the process that stored it may have died
// before it reported.
func (b *batch) noteList(ctx context.Context, list backup.ChunkID, nested bool, refs []backup.Ref) error {
	const idBytes = len(backup.ChunkID{}) + 2
	l := backup.ChunkList{List: list, Nested: nested, Chunks: make([]backup.ChunkID, len(refs))}
	for i := range refs {
		l.Chunks[i] = refs[i].Chunk
	}
	size := (len(refs) + 2) * idBytes
	if b.listBytes > 0 && b.listBytes+size > listMessageBytes {
		if err := b.reportLists(ctx); err != nil {
			return err
		}
	}
	b.lists = append(b.lists, l)
	b.listBytes += size
	return nil
}

// reportLists sends the lists that noteList recorded.
func (b *batch) reportLists(ctx context.Context) error {
	if len(b.lists) == 0 {
		return nil
	}
	m := &backup.ListsStored{Snapshot: b.msg.Job.Snapshot, Lists: b.lists}
	b.lists, b.listBytes = nil, 0
	return b.svc.untilSent(ctx, "the chunks of a large file", func() error { return b.svc.sendLists(ctx, m) })
}
