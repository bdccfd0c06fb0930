package entindex

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/settings"
)

const (
	maxRoleBytes   = 256
	maxHolderBytes = 256
	// maxTerm is the longest term of a leader and the longest commit lease. One that ends later was
	// given by a clock that was ahead, and counts as run out.
	maxTerm = 24 * time.Hour
)

const takeLead = `
INSERT INTO leaders (role, holder, epoch, until) VALUES ($1, $2, 1, {now} + $3)
ON CONFLICT (role) DO UPDATE SET holder = excluded.holder, until = excluded.until,
    epoch = leaders.epoch + CASE WHEN leaders.holder = excluded.holder AND leaders.until > {now} THEN 0 ELSE 1 END
WHERE leaders.holder = excluded.holder OR leaders.until <= {now} OR leaders.until > {now} + $4
RETURNING epoch`

// Lead implements index.Leading with one statement, for which the row of the role is the lock. A
// term that has run out is over even if nobody else has led since: its holder may have been paused,
// and other processes may have acted on its end.
func (x *Index) Lead(ctx context.Context, role, holder string, ttl time.Duration) (t index.Term, ok bool, err error) {
	if !isName(role, maxRoleBytes) || !isName(holder, maxHolderBytes) || ttl <= 0 || ttl > maxTerm {
		return index.Term{}, false, invalid("role %q, holder %q, for %s", role, holder, ttl)
	}
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		t, ok = index.Term{}, false
		args := []any{role, holder, ttl.Microseconds(), maxTerm.Microseconds()}
		return tx.Each(ctx, takeLead, args, func(scan func(...any) error) error {
			t.Role, ok = role, true
			return scan(&t.Epoch)
		})
	})
	if err != nil || !ok {
		return index.Term{}, false, err
	}
	return t, true, nil
}

// Leaders implements index.Succeeding.
func (x *Index) Leaders(ctx context.Context) (leaders []index.Leader, err error) {
	const query = "SELECT role, holder, epoch, until FROM leaders WHERE until > {now} AND until <= {now} + $1 ORDER BY role"
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) (err error) {
		leaders, err = listOf(ctx, tx.Each, query, []any{maxTerm.Microseconds()}, func(scan func(...any) error) (l index.Leader, err error) {
			var until int64
			err = scan(&l.Role, &l.Holder, &l.Epoch, &until)
			l.Until = time.UnixMicro(until).UTC()
			return l, err
		})
		return err
	})
	return leaders, err
}

// Resign implements index.Leading.
func (x *Index) Resign(ctx context.Context, t index.Term) error {
	return x.exec(ctx, Relaxed, `UPDATE leaders SET until = 0 WHERE role = $1 AND epoch = $2`, t.Role, t.Epoch)
}

const selectTerm = `SELECT epoch = $2 AND until > {now} FROM leaders WHERE role = $1 {for share}`

// checkTerm fails with ErrNotLeading unless t is the current term. No other process becomes the
// leader before the end of the transaction.
func (tx *Tx) checkTerm(ctx context.Context, t index.Term) error {
	leads := false
	err := tx.Each(ctx, selectTerm, []any{t.Role, t.Epoch}, func(scan func(...any) error) error { return scan(&leads) })
	if err != nil {
		return err
	}
	if !leads {
		return fmt.Errorf("%s, term %d: %w", t.Role, t.Epoch, index.ErrNotLeading)
	}
	return nil
}

// loadRow is a Load as SetLoads sends it to the database. Latencies are in microseconds.
type loadRow struct {
	ID          int64 `json:"id"`
	WalkSlots   int   `json:"walk_slots"`
	ReadSlots   int   `json:"read_slots"`
	WalkLatency int64 `json:"walk_latency"`
	WalkIdle    int64 `json:"walk_idle"`
	ReadLatency int64 `json:"read_latency"`
	ReadIdle    int64 `json:"read_idle"`
}

const setLoads = `
UPDATE filers AS f SET walk_slots = l.walk_slots, read_slots = l.read_slots,
    walk_latency = l.walk_latency, walk_idle = l.walk_idle, read_latency = l.read_latency, read_idle = l.read_idle
FROM {rows $1 AS l (id bigint, walk_slots bigint, read_slots bigint, walk_latency bigint, walk_idle bigint, read_latency bigint, read_idle bigint)}
WHERE f.id = l.id`

// SetLoads implements index.Leading.
func (x *Index) SetLoads(ctx context.Context, t index.Term, loads map[backup.FilerID]backup.Load) error {
	list := make([]loadRow, 0, len(loads))
	for id, l := range loads {
		if l.WalkSlots < 0 || l.WalkSlots > settings.MaxSlots || l.ReadSlots < 0 || l.ReadSlots > settings.MaxSlots {
			return invalid("%d walk slots and %d read slots of filer %d", l.WalkSlots, l.ReadSlots, id)
		}
		list = append(list, loadRow{
			int64(id), l.WalkSlots, l.ReadSlots,
			l.WalkLatency.Microseconds(), l.WalkIdle.Microseconds(), l.ReadLatency.Microseconds(), l.ReadIdle.Microseconds(),
		})
	}
	slices.SortFunc(list, func(a, b loadRow) int { return int(a.ID - b.ID) })
	_, err := asLeader(ctx, x, t, setLoads, list)
	return err
}

// asLeader runs a statement whose parameter 1 is rows as JSON, unless t has ended. It returns the
// number of changed rows.
func asLeader[R any](ctx context.Context, x *Index, t index.Term, statement string, rows []R) (changed int, err error) {
	list, err := json.Marshal(rows)
	if err != nil {
		return 0, err
	}
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil || len(rows) == 0 {
			return err
		}
		changed, err = tx.change(ctx, statement, string(list))
		return err
	})
	return changed, err
}

// Sites implements index.Leading.
func (x *Index) Sites(ctx context.Context) ([]string, error) {
	sites, err := listOf(ctx, x.query, "SELECT DISTINCT site FROM filers WHERE NOT retired", nil, oneColumn[string])
	if err != nil {
		return nil, err
	}
	sites = append(sites, backup.DefaultSite)
	slices.Sort(sites)
	return slices.Compact(sites), nil
}
