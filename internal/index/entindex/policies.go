package entindex

import (
	"context"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/backuppolicy"
	"github.com/bctl/bctl/internal/index/ent/shard"
	"github.com/bctl/bctl/internal/settings"
)

func toPolicy(row *ent.BackupPolicy) backup.Policy {
	return backup.Policy{
		ID: backup.PolicyID(row.ID), Revision: row.Revision, Name: row.Name, Labels: row.Labels, Paused: row.Paused,
		Schedule: row.Schedule, TimeZone: row.TimeZone, Jitter: time.Duration(row.Jitter) * time.Microsecond, Windows: row.Windows,
		RecoveryPoint: time.Duration(row.RecoveryPoint) * time.Microsecond, Retention: row.Retention, Selection: row.Selection, Floor: row.Floor,
	}
}

// SetPolicy implements index.Policies.
func (x *Index) SetPolicy(ctx context.Context, p backup.Policy) (backup.Policy, error) {
	if err := settings.Policy(p); err != nil {
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
		err := tx.BackupPolicy.Create().SetName(p.Name).SetLabels(p.Labels).SetPaused(p.Paused).
			SetSchedule(p.Schedule).SetTimeZone(p.TimeZone).SetJitter(p.Jitter.Microseconds()).SetWindows(p.Windows).
			SetRecoveryPoint(p.RecoveryPoint.Microseconds()).SetRetention(p.Retention).SetSelection(p.Selection).SetFloor(p.Floor).
			OnConflictColumns(backuppolicy.FieldName).Update(func(u *ent.BackupPolicyUpsert) {
			u.UpdateLabels().UpdatePaused().UpdateSchedule().UpdateTimeZone().UpdateJitter().UpdateWindows().
				UpdateRecoveryPoint().UpdateRetention().UpdateSelection().UpdateFloor().AddRevision(1)
		}).Exec(ctx)
		if err != nil {
			return err
		}
		row, err = tx.BackupPolicy.Query().Where(backuppolicy.Name(p.Name)).Only(ctx)
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
