package entindex

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent/snapshot"
)

// A hold on a path has the path key of the path, the end of the range of all path keys below it,
// and the path key of its directory: the database compares them with those of pages. Binaries that
// do not know these columns see a hold on all of the shard.
const (
	holdColumns = `id, snapshot, shard, path_key, reason, by, login, since, alarm`
	insertHold  = `
INSERT INTO holds (snapshot, shard, path_key, path_end, parent_key, reason, by, alarm, since) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, {now})
RETURNING ` + holdColumns
	deleteHold  = `DELETE FROM holds WHERE id = $1 RETURNING ` + holdColumns
	selectHolds = `SELECT ` + holdColumns + ` FROM holds ORDER BY id`
)

// maxHeldBytes bounds the path of a hold: an index of Postgres has a prefix of path keys that is
// longer.
const maxHeldBytes = 1000

func readHold(scan func(...any) error) (h index.Hold, err error) {
	var id, alarm *uuid.UUID
	var shard *int64
	var key []byte
	var since int64
	if err := scan(&h.ID, &id, &shard, &key, &h.Reason, &h.By, &h.Login, &since, &alarm); err != nil {
		return h, err
	}
	if id != nil {
		h.Snapshot = backup.SnapshotID(*id)
	}
	if shard != nil {
		h.Shard = backup.ShardID(*shard)
	}
	if alarm != nil {
		h.Alarm = backup.SnapshotID(*alarm)
	}
	h.Since = fromMicros(since)
	h.Path, err = backup.PathOfKey(key)
	return h, err
}

// holdSubject is the subject of what the log has of a hold.
func holdSubject(h *index.Hold) string {
	if h.Shard != 0 {
		return fmt.Sprintf("hold %d shard %d", h.ID, h.Shard)
	}
	return fmt.Sprintf("hold %d snapshot %s", h.ID, h.Snapshot)
}

// holdReason is the reason of what the log has of a hold. It begins with the path.
func holdReason(h *index.Hold, reason string) string {
	if h.Path == "" {
		return reason
	}
	return fmt.Sprintf("path %q: %s", h.Path, reason)
}

// cutHeldPath is the inverse of holdReason. It reports false if the text does not begin with a
// path.
func cutHeldPath(text string) (path, reason string, ok bool) {
	text, ok = strings.CutPrefix(text, "path ")
	if !ok {
		return "", "", false
	}
	quoted, err := strconv.QuotedPrefix(text)
	if err != nil {
		return "", "", false
	}
	if path, err = strconv.Unquote(quoted); err != nil {
		return "", "", false
	}
	reason, ok = strings.CutPrefix(text[len(quoted):], ": ")
	return path, reason, ok
}

func checkHold(h *index.Hold) error {
	if err := checkReason(h.By, h.Reason); err != nil {
		return err
	}
	one := h.Snapshot != backup.SnapshotID{}
	switch {
	case one == (h.Shard != 0):
		return invalid("a hold is on a snapshot or on a shard")
	case h.Alarm != (backup.SnapshotID{}) && (one || h.Path != ""):
		return invalid("an alarm is a hold on a shard")
	case one && h.Path != "":
		return invalid("a hold on a path is on a shard")
	case len(h.Path) > maxHeldBytes:
		return invalid("a hold on a path of %d bytes; at most %d", len(h.Path), maxHeldBytes)
	}
	return backup.CheckPath(h.Path)
}

// AddHold implements index.Forgetting. The row of the shard is the lock: a snapshot is either
// forgotten before, and then refused, or it is kept.
func (x *Index) AddHold(ctx context.Context, h index.Hold) (index.Hold, error) {
	if err := checkHold(&h); err != nil {
		return h, err
	}
	of := h.Shard
	if of == 0 {
		found, err := x.Snapshot(ctx, h.Snapshot)
		if err != nil {
			return h, err
		}
		of = found.Shard.ID
	}
	err := x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if _, err := tx.lockShard(ctx, of); err != nil {
			return err
		}
		if err := tx.checkHeld(ctx, &h); err != nil {
			return err
		}
		var added index.Hold
		err := tx.Each(ctx, insertHold, holdArgs(&h), func(scan func(...any) error) (err error) {
			added, err = readHold(scan)
			return err
		})
		if err != nil {
			return err
		}
		h = added
		return tx.writeLog(ctx, h.By, actionHold, holdSubject(&h), holdReason(&h, h.Reason))
	})
	return h, err
}

func holdArgs(h *index.Hold) []any {
	var id, shard, key, end, parent any
	if h.Shard == 0 {
		id = uuid.UUID(h.Snapshot)
	} else {
		shard = int64(h.Shard)
	}
	if h.Path != "" {
		p := newHeldPath(h)
		key, end, parent = p.tree.From, p.tree.To, p.parent.From
	}
	alarm := uuid.NullUUID{UUID: uuid.UUID(h.Alarm), Valid: h.Alarm != backup.SnapshotID{}}
	return []any{id, shard, key, end, parent, h.Reason, h.By, alarm}
}

// checkHeld fails with backup.ErrNotFound if there is nothing to hold.
func (tx *Tx) checkHeld(ctx context.Context, h *index.Hold) error {
	switch {
	case h.Path != "":
		p := newHeldPath(h)
		found, err := tx.views().anywhere(ctx, &p)
		if err == nil && !found {
			err = fmt.Errorf("path %q in a committed snapshot of shard %d: %w", h.Path, h.Shard, backup.ErrNotFound)
		}
		return err
	case h.Shard != 0:
		return nil
	}
	found, err := tx.Snapshot.Query().Where(snapshot.ID(uuid.UUID(h.Snapshot)), snapshot.State(string(backup.Committed)), snapshot.ForgottenIsNil()).Exist(ctx)
	if err == nil && !found {
		err = fmt.Errorf("committed snapshot %s: %w", h.Snapshot, backup.ErrNotFound)
	}
	return err
}

// RemoveHold implements index.Forgetting.
func (x *Index) RemoveHold(ctx context.Context, id int64, by, reason string) error {
	if err := checkReason(by, reason); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		removed, err := listOf(ctx, tx.Each, deleteHold, []any{id}, readHold)
		if err == nil && len(removed) == 0 {
			err = fmt.Errorf("hold %d: %w", id, backup.ErrNotFound)
		}
		if err != nil {
			return err
		}
		h := &removed[0]
		return tx.writeLog(ctx, by, actionRelease, holdSubject(h), holdReason(h, reason))
	})
}

// Holds implements index.Forgetting.
func (x *Index) Holds(ctx context.Context) ([]index.Hold, error) {
	return listOf(ctx, x.query, selectHolds, nil, readHold)
}
