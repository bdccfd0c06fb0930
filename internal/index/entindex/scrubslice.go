package entindex

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/index"
)

const (
	// sliceSince is when a slice was proven or noted, and sliceDue as due for packs.
	sliceSince = `CASE WHEN proven > noted THEN proven ELSE noted END`
	sliceDue   = `CASE WHEN proven = 0 THEN (slice + 1) * 619 % 1000 * 19 / 20 ELSE 700 + (slice + 1) * 619 % 1000 / 4 END`

	selectJournal = `
SELECT min(` + sliceSince + `), sum(CASE WHEN proven = 0 THEN 1 ELSE 0 END), sum(CASE WHEN ` + sliceSince + ` < $1 THEN 1 ELSE 0 END),
    CAST(sum(damaged) AS bigint), max(damage) FROM journal_proofs`
	selectSlices = `
SELECT slice, begun, reached, damaged, damage FROM journal_proofs
WHERE begun > 0 OR ` + sliceSince + ` < $1 OR ` + sliceSince + ` + (SELECT within FROM scrub) * 1000 * (` + sliceDue + `) <= $2 OR damaged > 0 AND proven < $3
ORDER BY begun = 0, ` + sliceSince + `, slice`
	noteSlice           = `UPDATE journal_proofs SET begun = $2, reached = $3, damaged = $4, damage = $5 WHERE slice = $1`
	noteProvenSlice     = `UPDATE journal_proofs SET proven = $2, begun = 0, reached = '', damaged = $3, damage = $4 WHERE slice = $1`
	forgetJournalProofs = `UPDATE journal_proofs SET proven = 0, begun = 0, reached = '', damaged = 0, damage = '', noted = {now}`
)

// scrubJournal adds what is proven of the journal.
func (x *Index) scrubJournal(ctx context.Context, s *index.Scrub) error {
	return x.query(ctx, selectJournal, []any{s.Now.Add(-s.Within).UnixMicro()}, func(scan func(...any) error) error {
		var oldest int64
		err := scan(&oldest, &s.JournalUnproven, &s.JournalLate, &s.JournalDamaged, &s.JournalDamage)
		s.JournalOldest = fromMicros(oldest)
		return err
	})
}

// JournalToProve implements index.Scrubbing.
func (x *Index) JournalToProve(ctx context.Context, before time.Time) ([]index.JournalSlice, error) {
	now, err := x.Backend.Clock(ctx)
	if err != nil {
		return nil, err
	}
	micros := int64(0)
	if !before.IsZero() {
		micros = before.UnixMicro()
	}
	args := []any{micros, now.UnixMicro(), now.Add(-index.ScrubDay).UnixMicro()}
	return listOf(ctx, x.query, selectSlices, args, func(scan func(...any) error) (s index.JournalSlice, err error) {
		var begun int64
		err = scan(&s.Slice, &begun, &s.Reached, &s.Damaged, &s.Damage)
		s.Begun = fromMicros(begun)
		return s, err
	})
}

// NoteJournal implements index.Scrubbing. Like NoteProofs, it need not be durable.
func (x *Index) NoteJournal(ctx context.Context, t index.Term, s index.JournalSlice, read index.ScrubCost) error {
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		begun, damage := s.Begun.UnixMicro(), text(s.Damage, maxErrorBytes)
		var err error
		if s.Done {
			err = tx.exec(ctx, noteProvenSlice, s.Slice, begun, s.Damaged, damage)
		} else {
			err = tx.exec(ctx, noteSlice, s.Slice, begun, text(s.Reached, maxErrorBytes), s.Damaged, damage)
		}
		if err != nil {
			return err
		}
		return tx.exec(ctx, countRead, index.ScrubDay.Microseconds(), read.Bytes, read.Requests)
	})
}
