package entindex

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// The proofs of the journal and of parity are in parts, the slices and the groups. Those of a part
// may end early, and go on.

// partsProven selects what is proven of the parts in a table.
func partsProven(table string) string {
	return `
SELECT count(*), coalesce(min(CASE WHEN NOT (` + undated + `) THEN ` + held + ` END), 0), coalesce(sum(CASE WHEN proven = 0 THEN 1 ELSE 0 END), 0),
    coalesce(sum(CASE WHEN ` + undated + ` THEN 1 ELSE 0 END), 0), coalesce(sum(CASE WHEN ` + held + ` < $1 THEN 1 ELSE 0 END), 0),
    coalesce(CAST(sum(damaged) AS bigint), 0), coalesce(max(damage), '') FROM ` + table
}

// partsDue selects the parts that are due, those in progress first.
func partsDue(columns, table, number, order string) string {
	return `SELECT ` + columns + ` FROM ` + table + ` AND (begun > 0 OR ` + held + ` < $1
    OR ` + held + ` + (SELECT within FROM scrub) * 1000 * (` + dueAfter(number) + `) <= $2 OR damaged > 0 AND proven < $3)
ORDER BY CASE WHEN begun = 0 THEN 1 ELSE 0 END, ` + held + `, ` + order
}

// forgetParts forgets the proofs of the parts in a table, in progress or not.
func forgetParts(table, reached, noted string) string {
	return `UPDATE ` + table + ` SET proven = 0, begun = 0, reached = ` + reached + `, damaged = 0, damage = '', noted = ` + noted
}

const (
	journalTable = "journal_proofs"
	parityTable  = "parity_groups"

	noteSlice       = `UPDATE journal_proofs SET begun = $2, reached = $3, damaged = $4, damage = $5 WHERE slice = $1`
	noteProvenSlice = `UPDATE journal_proofs SET proven = $2, begun = 0, reached = '', damaged = $3, damage = $4 WHERE slice = $1`

	noteParity        = `UPDATE parity_groups SET begun = $2, reached = $3, damaged = $4, damage = $5 WHERE id = $1`
	noteProvenParity  = `UPDATE parity_groups SET proven = $2, begun = 0, reached = 0, damaged = $3, damage = $4 WHERE id = $1`
	selectParityBytes = `SELECT coalesce(CAST(sum(stored_bytes) AS bigint), 0) FROM parity_groups WHERE state = 'valid'`
)

var (
	selectJournal = partsProven(journalTable)
	selectSlices  = partsDue(`slice, begun, reached, damaged, damage`, journalTable+` WHERE true`, `slice + 1`, `slice`)

	selectParityProven = partsProven(parityTable + ` WHERE state = 'valid'`)
	// The millisecond in which a group was noted is about as good as a number.
	selectParityDue = partsDue(`id, state, description, stored_bytes, begun, reached, damaged, damage`, parityTable+` WHERE state = 'valid'`, `noted / 1000`, `id`)

	forgetJournalProofs = forgetParts(journalTable, `''`, `{now}`)
	forgetParityProofs  = forgetParts(parityTable, `0`, `{now} - noted / 1000 % 1000 * 1000`)
)

// scrubParts returns what is proven of the parts that a query of partsProven selects.
func (x *Index) scrubParts(ctx context.Context, query string, s *index.Scrub) (p index.ScrubParts, err error) {
	err = x.query(ctx, query, []any{s.Now.Add(-s.Within).UnixMicro()}, func(scan func(...any) error) error {
		var oldest int64
		err := scan(&p.Parts, &oldest, &p.Unproven, &p.Undated, &p.Late, &p.Damaged, &p.Damage)
		p.Oldest = fromMicros(oldest)
		return err
	})
	return p, err
}

// JournalToProve implements index.Scrubbing.
func (x *Index) JournalToProve(ctx context.Context, before time.Time) ([]index.JournalSlice, error) {
	args, err := x.dueAt(ctx, before)
	if err != nil {
		return nil, err
	}
	return listOf(ctx, x.query, selectSlices, args, func(scan func(...any) error) (s index.JournalSlice, err error) {
		var begun int64
		err = scan(&s.Slice, &begun, &s.Reached, &s.Damaged, &s.Damage)
		s.Begun = fromMicros(begun)
		return s, err
	})
}

// NoteJournal implements index.Scrubbing. Like NoteProofs, it need not be durable.
func (x *Index) NoteJournal(ctx context.Context, t index.Term, s index.JournalSlice, read index.ScrubCost) error {
	return x.noteScrub(ctx, t, read, func(ctx context.Context, tx *Tx) error {
		begun, damage := s.Begun.UnixMicro(), text(s.Damage, maxErrorBytes)
		if s.Done {
			return tx.exec(ctx, noteProvenSlice, s.Slice, begun, s.Damaged, damage)
		}
		return tx.exec(ctx, noteSlice, s.Slice, begun, text(s.Reached, maxErrorBytes), s.Damaged, damage)
	})
}

// ParityToProve implements index.Scrubbing.
func (x *Index) ParityToProve(ctx context.Context, before time.Time) ([]index.ParityToProve, error) {
	args, err := x.dueAt(ctx, before)
	if err != nil {
		return nil, err
	}
	return listOf(ctx, x.query, selectParityDue, args, func(scan func(...any) error) (p index.ParityToProve, err error) {
		var id uuid.UUID
		var begun int64
		err = scan(&id, &p.State, &p.Description, &p.Bytes, &begun, &p.Reached, &p.Damaged, &p.Damage)
		p.ID, p.Begun, p.Suspect = backup.PackID(id), fromMicros(begun), p.Damaged > 0
		return p, err
	})
}

// NoteParity implements index.Scrubbing. Like NoteProofs, it need not be durable.
func (x *Index) NoteParity(ctx context.Context, t index.Term, p *index.ParityToProve, read index.ScrubCost) error {
	return x.noteScrub(ctx, t, read, func(ctx context.Context, tx *Tx) error {
		begun, damage := p.Begun.UnixMicro(), text(p.Damage, maxErrorBytes)
		if p.Done {
			return tx.exec(ctx, noteProvenParity, uuid.UUID(p.ID), begun, p.Damaged, damage)
		}
		return tx.exec(ctx, noteParity, uuid.UUID(p.ID), begun, p.Reached, p.Damaged, damage)
	})
}

// noteScrub notes results of a scrub, and what it has read, in one transaction.
func (x *Index) noteScrub(ctx context.Context, t index.Term, read index.ScrubCost, note func(ctx context.Context, tx *Tx) error) error {
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		if err := note(ctx, tx); err != nil {
			return err
		}
		return tx.exec(ctx, countRead, index.ScrubDay.Microseconds(), read.Bytes, read.Requests)
	})
}
