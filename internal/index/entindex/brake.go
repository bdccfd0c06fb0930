package entindex

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// maxOperators bounds how many operators must confirm.
const maxOperators = 10

const (
	selectBrake     = `SELECT snapshots, min_snapshots, bytes, min_bytes, operators FROM brake`
	updateBrake     = `UPDATE brake SET snapshots = $1, min_snapshots = $2, bytes = $3, min_bytes = $4`
	updateOperators = `UPDATE brake SET operators = $1`

	// A window that begins in the future is that of a clock that was ahead.
	inWindow      = `window_began BETWEEN {now} - $1 AND {now}`
	selectDeleted = `SELECT CASE WHEN ` + inWindow + ` THEN deleted_bytes ELSE 0 END FROM brake`
	countDeleted  = `
UPDATE brake SET deleted_bytes = CASE WHEN ` + inWindow + ` THEN deleted_bytes ELSE 0 END + $2,
    window_began = CASE WHEN ` + inWindow + ` THEN window_began ELSE {now} END`
)

// Brake implements index.Braking.
func (x *Index) Brake(ctx context.Context) (index.Brake, error) { return readBrake(ctx, x.query) }

func readBrake(ctx context.Context, each each) (b index.Brake, err error) {
	err = each(ctx, selectBrake, nil, func(scan func(...any) error) error {
		return scan(&b.Snapshots, &b.MinSnapshots, &b.Bytes, &b.MinBytes, &b.Operators)
	})
	return b, err
}

// SetBrake implements index.Braking. The number of operators is written only if it changes, because
// operators may not write it.
func (x *Index) SetBrake(ctx context.Context, b index.Brake, by string) error {
	if b.Snapshots < 0 || b.Snapshots > 100 || b.Bytes < 0 || b.Bytes > 100 || b.MinSnapshots < 1 || b.MinBytes < 1 || b.Operators < 1 || b.Operators > maxOperators {
		return invalid("brake %+v", b)
	}
	if err := checkReason(by, ""); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		was, err := readBrake(ctx, tx.Each)
		if err != nil || was == b {
			return err
		}
		if was.Operators != b.Operators {
			if err := tx.exec(ctx, updateOperators, b.Operators); err != nil {
				return err
			}
			was.Operators = b.Operators
		}
		if was != b {
			if err := tx.exec(ctx, updateBrake, b.Snapshots, b.MinSnapshots, b.Bytes, b.MinBytes); err != nil {
				return err
			}
		}
		return tx.writeLog(ctx, by, actionBrake, "brake", fmt.Sprintf("snapshots %d%%, at least %d; bytes %d%%, at least %d; operators %d",
			b.Snapshots, b.MinSnapshots, b.Bytes, b.MinBytes, b.Operators))
	})
}

// MayDelete implements index.Braking.
func (x *Index) MayDelete(ctx context.Context, d index.Deletion) error {
	if err := checkReason(d.By, ""); err != nil {
		return err
	}
	var stopped *index.StoppedError
	err := x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) (err error) {
		stopped, err = tx.mayDelete(ctx, d)
		return err
	})
	if err != nil || stopped == nil {
		return err
	}
	return stopped
}

// mayDelete returns nil if the deletion is small or confirmed, and else the stop of it.
func (tx *Tx) mayDelete(ctx context.Context, d index.Deletion) (*index.StoppedError, error) {
	brake, err := readBrake(ctx, tx.Each)
	if err != nil {
		return nil, err
	}
	if d.Shard == 0 {
		if d.EarlierBytes, err = tx.count(ctx, selectDeleted, index.BrakeWindow.Microseconds()); err != nil {
			return nil, err
		}
	}
	found, err := tx.stopOf(ctx, &d)
	if err != nil {
		return nil, err
	}
	if !brake.Exceeds(&d) {
		return nil, tx.dropStop(ctx, found)
	}
	if found != nil {
		if found.Covers(&d, &brake) {
			if found.Allowed() {
				return nil, nil
			}
			return &index.StoppedError{Stop: *found}, nil
		}
		if err := tx.dropStop(ctx, found); err != nil {
			return nil, err
		}
	}
	stop := index.Stop{Deletion: d, Operators: brake.Operators}
	if err := tx.insertStop(ctx, &stop); err != nil {
		return nil, err
	}
	return &index.StoppedError{Stop: stop, New: true}, nil
}

// stopOf returns the stop of an earlier run that deletes the same. It is nil if there is none.
func (tx *Tx) stopOf(ctx context.Context, d *index.Deletion) (*index.Stop, error) {
	stops, err := readStops(ctx, tx.Each)
	i := slices.IndexFunc(stops, func(s index.Stop) bool { return d.SameRun(&s) })
	if err != nil || i < 0 {
		return nil, err
	}
	return &stops[i], nil
}

const (
	insertStop = `
INSERT INTO stops (shard, by, snapshots, of_snapshots, bytes, of_bytes, earlier_bytes, since) VALUES ($1, $2, $3, $4, $5, $6, $7, {now})
RETURNING id, since`
	deleteStop  = `DELETE FROM stops WHERE id = $1`
	selectStops = `SELECT id, shard, by, snapshots, of_snapshots, bytes, of_bytes, earlier_bytes, since, rejected FROM stops ORDER BY id`

	selectConfirmations = `SELECT stop, identity FROM confirmations ORDER BY time, identity`
)

// insertStop inserts a stop, and sets its ID and time.
func (tx *Tx) insertStop(ctx context.Context, s *index.Stop) error {
	ids := make([]byte, 0, len(s.Snapshots)*len(backup.SnapshotID{}))
	for _, id := range s.Snapshots {
		ids = append(ids, id[:]...)
	}
	args := []any{int64(s.Shard), s.By, ids, s.OfSnapshots, s.Bytes, s.OfBytes, s.EarlierBytes}
	err := tx.Each(ctx, insertStop, args, func(scan func(...any) error) error {
		var since int64
		err := scan(&s.ID, &since)
		s.Since = fromMicros(since)
		return err
	})
	if err != nil {
		return err
	}
	return tx.writeLog(ctx, s.By, actionStop, stopped(&s.Deletion), fmt.Sprintf("stop %d: %s", s.ID, toDelete(&s.Deletion)))
}

// stopped returns what a stop is of, as a subject of the log.
func stopped(d *index.Deletion) string {
	if d.Shard == 0 {
		return "repository"
	}
	return fmt.Sprintf("shard %d", d.Shard)
}

// toDelete describes a deletion for the log.
func toDelete(d *index.Deletion) string {
	if d.Shard == 0 {
		return fmt.Sprintf("%d of %d bytes", d.Bytes, d.OfBytes)
	}
	return fmt.Sprintf("%d of %d snapshots", len(d.Snapshots), d.OfSnapshots)
}

// dropStop deletes a stop, if there is one. Its confirmations remain: no other stop gets its ID.
func (tx *Tx) dropStop(ctx context.Context, s *index.Stop) error {
	if s == nil {
		return nil
	}
	return tx.exec(ctx, deleteStop, s.ID)
}

// Deleted implements index.Braking. Bytes that were confirmed do not count later.
func (x *Index) Deleted(ctx context.Context, d index.Deletion, complete bool) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		found, err := tx.stopOf(ctx, &d)
		if err != nil {
			return err
		}
		counted := d.Bytes
		if found != nil && found.Allowed() {
			counted -= min(counted, found.Bytes)
			if complete {
				if err := tx.dropStop(ctx, found); err != nil {
					return err
				}
			}
		}
		if d.Shard != 0 || counted <= 0 {
			return nil
		}
		return tx.exec(ctx, countDeleted, index.BrakeWindow.Microseconds(), counted)
	})
}

// Stops implements index.Braking.
func (x *Index) Stops(ctx context.Context) ([]index.Stop, error) { return readStops(ctx, x.query) }

func readStops(ctx context.Context, each each) ([]index.Stop, error) {
	brake, err := readBrake(ctx, each)
	if err != nil {
		return nil, err
	}
	stops, err := listOf(ctx, each, selectStops, nil, func(scan func(...any) error) (s index.Stop, err error) {
		var ids []byte
		var since int64
		if err := scan(&s.ID, &s.Shard, &s.By, &ids, &s.OfSnapshots, &s.Bytes, &s.OfBytes, &s.EarlierBytes, &since, &s.Rejected); err != nil {
			return s, err
		}
		s.Since, s.Operators = fromMicros(since), brake.Operators
		for len(ids) >= len(uuid.UUID{}) {
			s.Snapshots, ids = append(s.Snapshots, backup.SnapshotID(ids)), ids[len(uuid.UUID{}):]
		}
		return s, nil
	})
	if err != nil || len(stops) == 0 {
		return stops, err
	}
	err = each(ctx, selectConfirmations, nil, func(scan func(...any) error) error {
		var stop int64
		var by string
		err := scan(&stop, &by)
		if i := slices.IndexFunc(stops, func(s index.Stop) bool { return s.ID == stop }); i >= 0 {
			stops[i].Confirmed = append(stops[i].Confirmed, by)
		}
		return err
	})
	return stops, err
}

const (
	setRejected         = `UPDATE stops SET rejected = $2 WHERE id = $1`
	insertConfirmation  = `INSERT INTO confirmations (stop, identity, time) VALUES ($1, $2, {now}) ON CONFLICT DO NOTHING`
	deleteConfirmations = `DELETE FROM confirmations WHERE stop = $1`
)

// Confirm implements index.Braking. In Postgres with roles, a trigger replaces the identity by the
// name in the certificate. The row of the stop is the lock.
func (x *Index) Confirm(ctx context.Context, id int64, by, reason string) (s index.Stop, err error) {
	err = x.judge(ctx, id, by, reason, "", func(ctx context.Context, tx *Tx) error {
		n, err := tx.change(ctx, insertConfirmation, id, by)
		if err == nil && n > 0 {
			err = tx.writeLog(ctx, by, actionConfirm, fmt.Sprintf("stop %d", id), reason)
		}
		if err != nil {
			return err
		}
		stops, err := readStops(ctx, tx.Each)
		if i := slices.IndexFunc(stops, func(s index.Stop) bool { return s.ID == id }); i >= 0 {
			s = stops[i]
		}
		return err
	})
	return s, err
}

// Reject implements index.Braking.
func (x *Index) Reject(ctx context.Context, id int64, by, reason string) error {
	return x.judge(ctx, id, by, reason, by, func(ctx context.Context, tx *Tx) error {
		if err := tx.exec(ctx, deleteConfirmations, id); err != nil {
			return err
		}
		return tx.writeLog(ctx, by, actionReject, fmt.Sprintf("stop %d", id), reason)
	})
}

// judge notes who has rejected a stop, and calls do in the same transaction.
func (x *Index) judge(ctx context.Context, id int64, by, reason, rejected string, do func(context.Context, *Tx) error) error {
	if err := checkReason(by, reason); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		n, err := tx.change(ctx, setRejected, id, rejected)
		if err == nil && n == 0 {
			err = fmt.Errorf("stop %d: %w", id, backup.ErrNotFound)
		}
		if err != nil {
			return err
		}
		return do(ctx, tx)
	})
}
