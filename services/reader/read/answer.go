package read

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/listing"
)

// answer waits until every pack that the batch relies on is durable, and then
// tells the committer: data first, index second (I1).
func (b *batch) answer(ctx context.Context) error {
	m := &backup.BatchStored{Snapshot: b.msg.Job.Snapshot, Batch: b.msg.ID, Attempt: b.msg.Attempt, Problems: b.problems}
	for ref := range b.packs {
		select {
		case <-ref.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if ref.err != nil {
			return ref.err
		}
		if !slices.Contains(m.ReliesOn, ref.id) {
			m.ReliesOn = append(m.ReliesOn, ref.id)
		}
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

// fail tells the committer that the batch can never be read.
func (b *batch) fail(ctx context.Context, cause error) error {
	return b.svc.sendBatch(ctx, &backup.BatchStored{
		Snapshot: b.msg.Job.Snapshot, Batch: b.msg.ID, Attempt: b.msg.Attempt,
		Failed: fmt.Sprintf("cannot read %s: %v", b.msg.Job.Source, cause),
	})
}

// encode makes page versions of the pages that were read: so a batch takes
// little while it waits for its packs.
func (b *batch) encode() error {
	var encode listing.Encoder
	for i := range b.pages {
		p := &b.pages[i]
		v := p.version
		if p.again {
			v.Fingerprint = backup.Fingerprint{}
		}
		var err error
		if v.Listing, err = encode.Encode(nil, &p.Page); err != nil {
			return fmt.Errorf("read batch %d: %w", b.msg.ID, err)
		}
		b.complete = append(b.complete, v)
	}
	b.pages, b.hash, b.cutter = nil, nil, nil
	return nil
}
