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
UPDATE shards AS h SET policy_id = b.policy, policy_revision = b.revision, due = 0,
	deadline = CASE WHEN h.last_good_started IS NULL THEN h.deadline ELSE 0 END
FROM {rows $1 AS b (filer bigint, policy bigint, revision bigint)}
WHERE h.filer_id = b.filer AND NOT h.retired AND (h.policy_id <> b.policy OR h.policy_revision <> b.revision)`

// Bind implements index.Scheduling with one statement, which writes only differences.
func (x *Index) Bind(ctx context.Context, t index.Term, bound map[backup.FilerID]index.Binding) (int, error) {
	list := make([]bindingRow, 0, len(bound))
	for id, b := range bound {
		list = append(list, bindingRow{int64(id), int64(b.Policy), b.Revision})
	}
	slices.SortFunc(list, func(a, b bindingRow) int { return int(a.Filer - b.Filer) })
	return asLeader(ctx, x, t, bindShards, list)
}

// numbers returns ids as the database has them.
func numbers[ID ~int64](ids []ID) []int64 {
	list := make([]int64, len(ids))
	for i, id := range ids {
		list[i] = int64(id)
	}
	return list
}

// Unplanned implements index.Scheduling.
func (x *Index) Unplanned(ctx context.Context, policies []backup.PolicyID, after backup.ShardID, limit int) ([]index.Unplanned, error) {
	rows, err := x.Backend.Client().Shard.Query().
		Where(shard.Due(0), shard.PolicyIDIn(numbers(policies)...), shard.Retired(false), shard.IDGT(int64(after))).
		Order(shard.ByID()).Limit(limit).All(ctx)
	if err != nil || len(rows) == 0 {
		return nil, x.Backend.Wrap(err)
	}
	ended, err := x.endedNotGood(ctx, newestFailed+butFor, index.PutBack)
	if err != nil {
		return nil, err
	}
	list := make([]index.Unplanned, len(rows))
	for i, row := range rows {
		list[i] = index.Unplanned{Plan: toPlan(row), Bad: ended.bad[row.ID], Failed: ended.failed[row.ID].UTC()}
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

// butFor passes over snapshots that have failed for one reason.
const butFor = " AND COALESCE(s.reason, '') <> $1"

// markedBad selects shards that have a bad snapshot after their last good one. LIMIT makes Postgres
// look into the index of each of these shards, instead of reading all snapshots.
const markedBad = `
SELECT h.id, true
FROM shards h
WHERE h.last_number > h.last_good_number AND (
	SELECT 1 FROM snapshots s
	WHERE s.shard_id = h.id AND s.number > h.last_good_number AND s.state = 'committed' AND s.forgotten IS NULL AND s.bad <> ''
	LIMIT 1) = 1`

// endedNotGood describes the ended snapshots that are not good. It searches only shards whose last
// snapshot has a higher number than their last good one. whichFailed is newestFailed, or restricts
// it.
func (x *Index) endedNotGood(ctx context.Context, whichFailed string, args ...any) (notGood, error) {
	failed, err := mapOf[int64, time.Time](ctx, x.query, whichFailed, args...)
	if err != nil {
		return notGood{}, err
	}
	bad, err := mapOf[int64, bool](ctx, x.query, markedBad)
	return notGood{failed, bad}, err
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
	_, err := asLeader(ctx, x, t, planShards, list)
	return err
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
func (x *Index) Unplan(ctx context.Context, t index.Term, after map[backup.PolicyID]time.Time) (int, error) {
	list := make([]latestRow, 0, len(after))
	for id, due := range after {
		list = append(list, latestRow{int64(id), micros(due)})
	}
	slices.SortFunc(list, func(a, b latestRow) int { return int(a.Policy - b.Policy) })
	return asLeader(ctx, x, t, unplanShards, list)
}

// DueShards implements index.Scheduling.
func (x *Index) DueShards(ctx context.Context, now time.Time, policies []backup.PolicyID) ([]index.Plan, map[backup.FilerID]int, error) {
	rows, err := x.Backend.Client().Shard.Query().
		Where(shard.DueGT(0), shard.DueLTE(micros(now)), shard.PolicyIDIn(numbers(policies)...), shard.Retired(false)).
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

// policyNames returns all policies, with their names and how often they want drills.
func (x *Index) policyNames(ctx context.Context) (map[backup.PolicyID]backup.Policy, error) {
	found := map[backup.PolicyID]backup.Policy{}
	err := x.query(ctx, "SELECT id, name, drill FROM policies", nil, func(scan func(...any) error) error {
		var p backup.Policy
		var drill int64
		err := scan(&p.ID, &p.Name, &drill)
		p.Drill = time.Duration(drill) * time.Microsecond
		found[p.ID] = p
		return err
	})
	return found, err
}

// policySelection returns the exclusions of the policy of a shard.
func (tx *Tx) policySelection(ctx context.Context, of *ent.Shard) (backup.Selection, error) {
	if of.PolicyID == 0 {
		return backup.Selection{}, nil
	}
	var s backup.Selection // of a policy that is being removed: none
	err := tx.Each(ctx, `SELECT selection FROM policies WHERE id = $1`, []any{of.PolicyID}, func(scan func(...any) error) error {
		var selection []byte
		if err := scan(&selection); err != nil {
			return err
		}
		return json.Unmarshal(selection, &s)
	})
	return s, err
}
