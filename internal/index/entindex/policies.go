package entindex

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/backuppolicy"
	"github.com/bctl/bctl/internal/index/ent/shard"
	"github.com/bctl/bctl/internal/policy"
)

const (
	maxPolicyName   = 255
	maxScheduleText = 256
	maxWindows      = 64
)

func toPolicy(row *ent.BackupPolicy) backup.Policy {
	return backup.Policy{
		ID: backup.PolicyID(row.ID), Revision: row.Revision, Name: row.Name, Labels: row.Labels, Paused: row.Paused,
		Schedule: row.Schedule, TimeZone: row.TimeZone, Jitter: time.Duration(row.Jitter) * time.Microsecond, Windows: row.Windows,
		RecoveryPoint: time.Duration(row.RecoveryPoint) * time.Microsecond, Retention: row.Retention, Selection: row.Selection, Floor: row.Floor,
	}
}

// renewPolicy gives a policy its next revision, or creates it without settings. Its row is locked.
const renewPolicy = `
INSERT INTO policies (name, schedule, retention, selection) VALUES ($1, '', '{}', '{}')
ON CONFLICT (name) DO UPDATE SET revision = policies.revision + 1
RETURNING id`

// SetPolicy implements index.Policies.
func (x *Index) SetPolicy(ctx context.Context, p backup.Policy) (backup.Policy, error) {
	if err := validatePolicy(p); err != nil {
		return backup.Policy{}, err
	}
	if p.Labels == nil {
		p.Labels = map[string]string{}
	}
	if p.Windows == nil {
		p.Windows = []string{}
	}
	var row *ent.BackupPolicy
	err := x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		var id int64
		err := tx.each(ctx, renewPolicy, []any{p.Name}, func(scan func(...any) error) error { return scan(&id) })
		if err != nil {
			return err
		}
		row, err = tx.BackupPolicy.UpdateOneID(id).SetLabels(p.Labels).SetPaused(p.Paused).
			SetSchedule(p.Schedule).SetTimeZone(p.TimeZone).SetJitter(p.Jitter.Microseconds()).SetWindows(p.Windows).
			SetRecoveryPoint(p.RecoveryPoint.Microseconds()).SetRetention(p.Retention).SetSelection(p.Selection).SetFloor(p.Floor).Save(ctx)
		return err
	})
	if err != nil {
		return backup.Policy{}, err
	}
	return toPolicy(row), nil
}

// RemovePolicy implements index.Policies.
func (x *Index) RemovePolicy(ctx context.Context, name string) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		id, err := tx.BackupPolicy.Query().Where(backuppolicy.Name(name)).OnlyID(ctx)
		if ent.IsNotFound(err) {
			return fmt.Errorf("policy %q: %w", name, backup.ErrNotFound)
		}
		if err != nil {
			return err
		}
		if err := tx.BackupPolicy.DeleteOneID(id).Exec(ctx); err != nil {
			return err
		}
		return tx.Shard.Update().Where(shard.PolicyID(id)).SetPolicyID(0).SetPolicyRevision(0).SetDue(0).SetDeadline(0).Exec(ctx)
	})
}

// ListPolicies implements index.Policies.
func (x *Index) ListPolicies(ctx context.Context) ([]backup.Policy, error) {
	rows, err := x.Backend.Client().BackupPolicy.Query().Order(backuppolicy.ByName()).All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	policies := make([]backup.Policy, len(rows))
	for i, row := range rows {
		policies[i] = toPolicy(row)
	}
	return policies, nil
}

func validatePolicy(p backup.Policy) error {
	if !isName(p.Name, maxPolicyName) {
		return invalid("policy name %q", p.Name)
	}
	for _, text := range append(slices.Clone(p.Windows), p.Schedule, p.TimeZone) {
		if len(text) > maxScheduleText || !isText(text) {
			return invalid("policy %q: schedule, time zone or window %q", p.Name, text)
		}
	}
	if len(p.Windows) > maxWindows {
		return invalid("policy %q: %d windows, more than %d", p.Name, len(p.Windows), maxWindows)
	}
	if _, err := policy.Parse(p); err != nil {
		return fmt.Errorf("policy %q: %w", p.Name, err)
	}
	r := p.Retention
	for _, n := range []int{r.Last, r.Hourly, r.Daily, r.Weekly, r.Monthly, r.Yearly, int(r.Within)} {
		if n < 0 {
			return invalid("policy %q: retention of %d", p.Name, n)
		}
	}
	if err := validateLabels(p.Labels); err != nil {
		return err
	}
	return validateStoredSelection(p.Selection)
}
