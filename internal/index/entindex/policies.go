package entindex

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent/shard"
	"github.com/bctl/bctl/internal/settings"
)

// Times of policies are in microseconds. Labels, windows, retention and selection are JSON.
const (
	policyColumns = `
    id, name, revision, labels, paused, schedule, time_zone, jitter, windows, recovery_point, floor, drill, retention, selection`

	setPolicy = `
INSERT INTO policies (name, labels, paused, schedule, time_zone, jitter, windows, recovery_point, floor, drill, retention, selection)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (name) DO UPDATE SET revision = policies.revision + 1,
    labels = excluded.labels, paused = excluded.paused, schedule = excluded.schedule, time_zone = excluded.time_zone,
    jitter = excluded.jitter, windows = excluded.windows, recovery_point = excluded.recovery_point,
    floor = excluded.floor, drill = excluded.drill, retention = excluded.retention, selection = excluded.selection
RETURNING` + policyColumns

	selectPolicies = `SELECT` + policyColumns + ` FROM policies ORDER BY name`
)

func readPolicy(scan func(...any) error) (p backup.Policy, err error) {
	var jitter, recoveryPoint, drill int64
	var labels, windows, retention, selection []byte
	err = scan(&p.ID, &p.Name, &p.Revision, &labels, &p.Paused, &p.Schedule, &p.TimeZone, &jitter, &windows, &recoveryPoint,
		&p.Floor, &drill, &retention, &selection)
	if err != nil {
		return p, err
	}
	p.Jitter, p.RecoveryPoint = time.Duration(jitter)*time.Microsecond, time.Duration(recoveryPoint)*time.Microsecond
	p.Drill = time.Duration(drill) * time.Microsecond
	for _, column := range []struct {
		text []byte
		into any
	}{{labels, &p.Labels}, {windows, &p.Windows}, {retention, &p.Retention}, {selection, &p.Selection}} {
		if len(column.text) == 0 { // NULL
			continue
		}
		if err := json.Unmarshal(column.text, column.into); err != nil {
			return p, fmt.Errorf("policy %q: %w: %w", p.Name, backup.ErrCorrupt, err)
		}
	}
	return p, nil
}

// SetPolicy implements index.Policies.
func (x *Index) SetPolicy(ctx context.Context, p backup.Policy, by string) (set backup.Policy, err error) {
	if err := settings.Policy(p); err != nil {
		return backup.Policy{}, err
	}
	if err := checkReason(by, ""); err != nil {
		return backup.Policy{}, err
	}
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	if p.Windows == nil {
		p.Windows = []string{}
	}
	var columns [4]json.RawMessage
	for i, value := range []any{p.Labels, p.Windows, p.Retention, p.Selection} {
		if columns[i], err = json.Marshal(value); err != nil {
			return backup.Policy{}, err
		}
	}
	args := []any{
		p.Name, columns[0], p.Paused, p.Schedule, p.TimeZone, p.Jitter.Microseconds(), columns[1], p.RecoveryPoint.Microseconds(),
		p.Floor, p.Drill.Microseconds(), columns[2], columns[3],
	}
	for {
		err = x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) (err error) {
			set, err = tx.setPolicy(ctx, p.Name, by, args)
			return err
		})
		if !errors.Is(err, errRaced) { // the next one finds the policy
			break
		}
	}
	if err != nil {
		return backup.Policy{}, err
	}
	return set, nil
}

// setPolicy fails with errRaced if another transaction has created the policy meanwhile, because
// the log would then lack its earlier settings.
func (tx *Tx) setPolicy(ctx context.Context, name, by string, args []any) (set backup.Policy, err error) {
	found, err := tx.count(ctx, `SELECT count(*) FROM policies WHERE name = $1`, name)
	if err != nil {
		return set, err
	}
	err = tx.logPolicy(ctx, name, by, func() error {
		return tx.Each(ctx, setPolicy, args, func(scan func(...any) error) (err error) {
			set, err = readPolicy(scan)
			return err
		})
	})
	if err == nil && found == 0 && set.Revision > 1 {
		err = errRaced
	}
	return set, err
}

// RemovePolicy implements index.Policies.
func (x *Index) RemovePolicy(ctx context.Context, name, by string) error {
	if err := checkReason(by, ""); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		id, found := int64(0), false
		err := tx.logPolicy(ctx, name, by, func() error {
			return tx.Each(ctx, `DELETE FROM policies WHERE name = $1 RETURNING id`, []any{name}, func(scan func(...any) error) error {
				found = true
				return scan(&id)
			})
		})
		switch {
		case err != nil:
			return err
		case !found:
			return fmt.Errorf("policy %q: %w", name, backup.ErrNotFound)
		}
		return tx.Shard.Update().Where(shard.PolicyID(id)).SetPolicyID(0).SetPolicyRevision(0).SetDue(0).SetDeadline(0).Exec(ctx)
	})
}

// ListPolicies implements index.Policies.
func (x *Index) ListPolicies(ctx context.Context) ([]backup.Policy, error) {
	return listOf(ctx, x.query, selectPolicies, nil, readPolicy)
}

// errRaced reports that another transaction has created the policy in the meantime.
var errRaced = errors.New("created by another transaction")

// logPolicy calls change, which changes a policy. If that changes a setting on which it depends
// what is kept, logPolicy notes the old and the new settings in the log. The database writes the
// settings (Dialect.LoggedPolicy), and so can check the entry.
func (tx *Tx) logPolicy(ctx context.Context, name, by string, change func() error) error {
	look := func() (string, error) {
		found, err := listOf(ctx, tx.Each, `SELECT `+tx.LoggedPolicy+` FROM policies WHERE name = $1 {for update}`, []any{name}, oneColumn[string])
		if err != nil || len(found) == 0 {
			return noPolicy, err
		}
		return found[0], nil
	}
	was, err := look()
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	is, err := look()
	if err != nil || was == is {
		return err
	}
	return tx.writeLog(ctx, by, actionPolicy, "policy "+name, `{"was": `+was+`, "is": `+is+`}`)
}

// noPolicy is what the log has in place of a policy that does not exist.
const noPolicy = "null"
