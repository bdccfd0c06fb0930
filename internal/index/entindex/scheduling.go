package entindex

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/filer"
	"github.com/bctl/bctl/internal/index/ent/shard"
)

// micros returns a time as shards store it: microseconds since 1970, or 0 for none.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func fromMicros(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

func toPlan(row *ent.Shard) index.Plan {
	return index.Plan{
		Shard: backup.ShardID(row.ID), Filer: backup.FilerID(row.FilerID),
		Binding: index.Binding{Policy: backup.PolicyID(row.PolicyID), Revision: row.PolicyRevision},
		Due:     fromMicros(row.Due), Deadline: fromMicros(row.Deadline), Good: backup.SnapshotNumber(row.LastGoodNumber),
	}
}

// FilersToSchedule implements index.Scheduling.
func (x *Index) FilersToSchedule(ctx context.Context) ([]backup.Filer, error) {
	rows, err := x.Backend.Client().Filer.Query().Where(filer.Retired(false)).Select(filer.FieldID, filer.FieldLabels, filer.FieldSite).All(ctx)
	if err != nil {
		return nil, x.Backend.Wrap(err)
	}
	filers := make([]backup.Filer, len(rows))
	for i, row := range rows {
		filers[i] = backup.Filer{ID: backup.FilerID(row.ID), Labels: row.Labels, Site: row.Site}
	}
	return filers, nil
}

// bindingRow is a filer's Binding as Bind sends it to the database.
type bindingRow struct {
	Filer    int64 `json:"filer"`
	Policy   int64 `json:"policy"`
	Revision int64 `json:"revision"`
}

const bindShards = `
UPDATE shards AS h SET policy_id = b.policy, policy_revision = b.revision, due = 0, deadline = 0
FROM {rows $1 AS b (filer bigint, policy bigint, revision bigint)}
WHERE h.filer_id = b.filer AND NOT h.retired AND (h.policy_id <> b.policy OR h.policy_revision <> b.revision)`

// Bind implements index.Scheduling with one statement, which writes only differences.
func (x *Index) Bind(ctx context.Context, t index.Term, bound map[backup.FilerID]index.Binding) (changed int, err error) {
	list := make([]bindingRow, 0, len(bound))
	for id, b := range bound {
		list = append(list, bindingRow{int64(id), int64(b.Policy), b.Revision})
	}
	slices.SortFunc(list, func(a, b bindingRow) int { return int(a.Filer - b.Filer) })
	rows, err := json.Marshal(list)
	if err != nil {
		return 0, err
	}
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		changed, err = tx.change(ctx, bindShards, string(rows))
		return err
	})
	return changed, err
}

func ofPolicies(policies []backup.PolicyID) []int64 {
	ids := make([]int64, len(policies))
	for i, id := range policies {
		ids[i] = int64(id)
	}
	return ids
}

// Unplanned implements index.Scheduling.
func (x *Index) Unplanned(ctx context.Context, policies []backup.PolicyID, after backup.ShardID, limit int) ([]index.Unplanned, error) {
	rows, err := x.Backend.Client().Shard.Query().
		Where(shard.Due(0), shard.PolicyIDIn(ofPolicies(policies)...), shard.Retired(false), shard.IDGT(int64(after))).
		Order(shard.ByID()).Limit(limit).All(ctx)
	if err != nil || len(rows) == 0 {
		return nil, x.Backend.Wrap(err)
	}
	ended, err := x.endedNotGood(ctx)
	if err != nil {
		return nil, err
	}
	list := make([]index.Unplanned, len(rows))
	for i, row := range rows {
		list[i] = index.Unplanned{Plan: toPlan(row), Bad: ended.bad[row.ID], Failed: ended.failed[row.ID]}
		if row.LastGoodStarted != nil {
			list[i].LastGood = row.LastGoodStarted.UTC()
		}
	}
	return list, nil
}

// A notGood describes, by shard, the snapshots that are newer than the shard's last good one.
type notGood struct {
	failed map[int64]time.Time // when the newest snapshot failed
	bad    map[int64]bool      // one was marked as bad
}

// newestFailed selects shards whose newest snapshot failed, and when.
const newestFailed = `
SELECT h.id, s.ended
FROM shards h JOIN snapshots s ON s.shard_id = h.id AND s.number = h.last_number
WHERE h.last_number > h.last_good_number AND s.state = 'failed' AND s.ended IS NOT NULL`

// markedBad selects shards that have a bad snapshot after their last good one. LIMIT makes Postgres
// look into the index of each of these shards, instead of reading all snapshots.
const markedBad = `
SELECT h.id
FROM shards h
WHERE h.last_number > h.last_good_number AND (
	SELECT 1 FROM snapshots s
	WHERE s.shard_id = h.id AND s.number > h.last_good_number AND s.state = 'committed' AND s.bad <> ''
	LIMIT 1) = 1`

// endedNotGood returns what ended without a good snapshot. The number of a shard's last snapshot,
// and that of its last good one, bound the search to shards of which something has.
func (x *Index) endedNotGood(ctx context.Context) (notGood, error) {
	found := notGood{map[int64]time.Time{}, map[int64]bool{}}
	err := x.query(ctx, newestFailed, nil,
		func(scan func(...any) error) error {
			var of int64
			var ended time.Time
			err := scan(&of, &ended)
			found.failed[of] = ended.UTC()
			return err
		})
	if err != nil {
		return found, err
	}
	err = x.query(ctx, markedBad, nil,
		func(scan func(...any) error) error {
			var of int64
			err := scan(&of)
			found.bad[of] = true
			return err
		})
	return found, err
}

// planRow is a Plan as PlanShards sends it to the database.
type planRow struct {
	ID       int64 `json:"id"`
	Policy   int64 `json:"policy"`
	Revision int64 `json:"revision"`
	Due      int64 `json:"due"`
	Deadline int64 `json:"deadline"`
	Good     int64 `json:"good"`
}

const planShards = `
UPDATE shards AS h SET due = p.due, deadline = p.deadline
FROM {rows $1 AS p (id bigint, policy bigint, revision bigint, due bigint, deadline bigint, good bigint)}
WHERE h.id = p.id AND h.due = 0 AND h.policy_id = p.policy AND h.policy_revision = p.revision
    AND h.last_good_number = p.good`

// PlanShards implements index.Scheduling.
func (x *Index) PlanShards(ctx context.Context, t index.Term, plans []index.Plan) error {
	list := make([]planRow, len(plans))
	for i, p := range plans {
		list[i] = planRow{int64(p.Shard), int64(p.Policy), p.Revision, micros(p.Due), micros(p.Deadline), int64(p.Good)}
	}
	rows, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil || len(list) == 0 {
			return err
		}
		return tx.exec(ctx, planShards, string(rows))
	})
}

// latestRow is the latest time at which shards of a policy may be due, as Unplan sends it to the
// database.
type latestRow struct {
	Policy int64 `json:"policy"`
	Due    int64 `json:"due"`
}

const unplanShards = `
UPDATE shards AS h SET due = 0, deadline = 0
FROM {rows $1 AS l (policy bigint, due bigint)}
WHERE h.policy_id = l.policy AND h.due > l.due AND NOT h.retired`

// Unplan implements index.Scheduling.
func (x *Index) Unplan(ctx context.Context, t index.Term, after map[backup.PolicyID]time.Time) (dropped int, err error) {
	list := make([]latestRow, 0, len(after))
	for id, due := range after {
		list = append(list, latestRow{int64(id), micros(due)})
	}
	slices.SortFunc(list, func(a, b latestRow) int { return int(a.Policy - b.Policy) })
	rows, err := json.Marshal(list)
	if err != nil {
		return 0, err
	}
	err = x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil || len(list) == 0 {
			return err
		}
		dropped, err = tx.change(ctx, unplanShards, string(rows))
		return err
	})
	return dropped, err
}

// DueShards implements index.Scheduling.
func (x *Index) DueShards(ctx context.Context, now time.Time, policies []backup.PolicyID) ([]index.Plan, map[backup.FilerID]int, error) {
	rows, err := x.Backend.Client().Shard.Query().
		Where(shard.DueGT(0), shard.DueLTE(micros(now)), shard.PolicyIDIn(ofPolicies(policies)...), shard.Retired(false)).
		Select(shard.FieldID, shard.FieldFilerID, shard.FieldPolicyID, shard.FieldPolicyRevision, shard.FieldDue, shard.FieldDeadline, shard.FieldLastGoodNumber).
		All(ctx)
	if err != nil {
		return nil, nil, x.Backend.Wrap(err)
	}
	// A snapshot that has begun and ended since has changed the plan, and BeginDue detects that.
	runs := map[int64]bool{}
	running := map[backup.FilerID]int{}
	err = x.query(ctx, "SELECT shard_id, filer_id FROM snapshots WHERE "+isRunning, nil, func(scan func(...any) error) error {
		var of, on int64
		err := scan(&of, &on)
		runs[of] = true
		running[backup.FilerID(on)]++
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	due := make([]index.Plan, 0, len(rows))
	for _, row := range rows {
		if !runs[row.ID] {
			due = append(due, toPlan(row))
		}
	}
	return due, running, nil
}

// scheduled describes the due shard for which the scheduler begins a snapshot.
type scheduled struct {
	term index.Term
	plan index.Plan
}

// isPlanOf reports whether the plan is still the shard's.
func (s *scheduled) isPlanOf(row *ent.Shard) bool {
	return toPlan(row).Binding == s.plan.Binding && row.Due != 0 && row.Due == micros(s.plan.Due)
}

// BeginDue implements index.Scheduling.
func (x *Index) BeginDue(ctx context.Context, t index.Term, p index.Plan, now time.Time) (backup.Snapshot, error) {
	return x.begin(ctx, p.Shard, backup.Snapshot{}, now, &scheduled{t, p})
}

// policyNames returns the names of all policies.
func (x *Index) policyNames(ctx context.Context) (map[backup.PolicyID]string, error) {
	policies, err := x.ListPolicies(ctx)
	names := make(map[backup.PolicyID]string, len(policies))
	for i := range policies {
		names[policies[i].ID] = policies[i].Name
	}
	return names, err
}

// policySelection returns the exclusions of the policy of a shard.
func (tx *Tx) policySelection(ctx context.Context, of *ent.Shard) (backup.Selection, error) {
	if of.PolicyID == 0 {
		return backup.Selection{}, nil
	}
	var s backup.Selection // of a policy that is being removed: none
	err := tx.each(ctx, `SELECT selection FROM policies WHERE id = $1`, []any{of.PolicyID}, func(scan func(...any) error) error {
		var selection []byte
		if err := scan(&selection); err != nil {
			return err
		}
		return json.Unmarshal(selection, &s)
	})
	return s, err
}
