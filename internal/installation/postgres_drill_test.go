package installation

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// An operator stores the reports of drills, which no other role can.
func TestOperatorsDrill(t *testing.T) {
	f := withSnapshots(t)
	d := index.Drill{
		ID: backup.NewDrillID(), Shard: f.shard.ID, Snapshot: f.snapshots[0], Started: time.Now(), Passed: true,
		Report: []byte(`{}`), Signature: bytes.Repeat([]byte{1}, 64),
	}
	for range index.KeptDrills + 2 { // the oldest are deleted
		d.ID, d.Started = backup.NewDrillID(), d.Started.Add(time.Second)
		if err := f.operator.AddDrill(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	found, err := f.operator.Drills(t.Context(), f.shard.ID)
	if err != nil || len(found) != index.KeptDrills {
		t.Errorf("%d reports, %v", len(found), err)
	}
	refused := func(what string, err error) {
		t.Helper()
		var refusal *pgconn.PgError
		if !errors.As(err, &refusal) || refusal.Code != "42501" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, role := range []Role{Committer, Pruner, Walker, Reader} {
		_, err := f.conns[role].Exec(t.Context(), `DELETE FROM drills`)
		refused(string(role)+" deletes", err)
		_, err = f.conns[role].Exec(t.Context(), `INSERT INTO drills SELECT gen_random_uuid(), shard, snapshot, started, passed, report, signature FROM drills`)
		refused(string(role)+" adds", err)
	}
	_, err = f.conns[Operator].Exec(t.Context(), `UPDATE drills SET passed = false`)
	refused("the operator changes a report", err)
	// Those that list shards see when the last drill passed.
	for name, list := range map[string]func(context.Context, index.ShardFilter) ([]index.ShardStatus, error){
		"committer": f.committer.ListShards, "pruner": f.pruner.ListShards, "operator": f.operator.ListShards,
	} {
		shards, err := list(t.Context(), index.ShardFilter{})
		if err != nil || len(shards) != 1 || shards[0].Drills.Passed.IsZero() || shards[0].Drills.Failed() {
			t.Errorf("%s: %+v, %v", name, shards, err)
		}
	}
}
