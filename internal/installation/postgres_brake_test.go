package installation

import (
	"fmt"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
)

// Operators are known by their certificates, not by the names that they give bctl. A new generation
// of a certificate is the same operator.
func TestOperatorsAreKnownByCertificates(t *testing.T) {
	d := seeded(t)
	if err := d.Refresh(time.Now(), Refreshing{Operators: []string{"alice", "bob"}}); err != nil {
		t.Fatal(err)
	}
	d.server.Reload(t)
	open := func(folder string, role Role) *pgindex.Index {
		t.Helper()
		x, err := pgindex.Open(t.Context(), d.dsn(folder, role), pgindex.Options{MaxConns: 1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = x.Close() })
		return x
	}
	admin := open("admin", Admin)
	if err := admin.SetBrake(t.Context(), index.Brake{Snapshots: 50, MinSnapshots: 1, Bytes: 30, MinBytes: 1, Operators: 2}, "admin"); err != nil {
		t.Fatal(err)
	}
	stopped := open("pruner", Pruner).MayDelete(t.Context(), index.Deletion{By: "pruner", Bytes: 50, OfBytes: 100})
	if stopped == nil {
		t.Fatal("it is not stopped")
	}
	confirm := func(folder, by string) index.Stop {
		t.Helper()
		s, err := open(folder, Operator).Confirm(t.Context(), 1, by, "")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	confirm("operator@alice", "alice@host")
	if err := d.Rotate(time.Now(), "operator@alice"); err != nil {
		t.Fatal(err)
	}
	d.server.Reload(t)
	if s := confirm("operator@alice", "bob@host"); s.Allowed() || fmt.Sprint(s.Confirmed) != "[operator@alice]" {
		t.Fatalf("%+v: alice has confirmed it twice", s)
	}
	if s := confirm("operator@bob", "alice@host"); !s.Allowed() || fmt.Sprint(s.Confirmed) != "[operator@alice operator@bob]" {
		t.Fatalf("%+v: two operators have confirmed it", s)
	}
	var logins []string
	for e, err := range admin.Log(t.Context(), time.Time{}) {
		if err != nil {
			t.Fatal(err)
		}
		logins = append(logins, e.Action+" "+e.Login)
	}
	if want := "[brake bctl_admin stop pruner confirm operator@alice confirm operator@bob]"; fmt.Sprint(logins) != want {
		t.Errorf("log %v, want %s", logins, want)
	}
}

// Where two operators must confirm, one of them can neither confirm alone, nor loosen the brake,
// nor change how many must confirm.
func TestOneOfTwoOperators(t *testing.T) {
	f := withSnapshots(t)
	ctx := t.Context()
	brake := index.Brake{Snapshots: 50, MinSnapshots: 1, Bytes: 30, MinBytes: 1, Operators: 1}
	if err := f.SetBrake(ctx, brake, "operator"); err != nil {
		t.Fatal(err)
	}
	f.refused(t, Operator, "UPDATE brake SET operators = 2")
	brake.Operators = 2
	if err := f.SetBrake(ctx, brake, "admin"); err != nil {
		t.Fatal(err)
	}
	for _, column := range []string{"snapshots", "min_snapshots", "bytes", "min_bytes"} {
		f.refused(t, Operator, "UPDATE brake SET "+column+" = 100")
	}
	f.refused(t, Operator, "UPDATE brake SET operators = 1")
	f.refused(t, Operator, "DELETE FROM brake")

	d := index.Deletion{By: "pruner", Bytes: 50, OfBytes: 100}
	if err := f.MayDelete(ctx, d); err == nil {
		t.Fatal("it is not stopped")
	}
	stops, err := f.Stops(ctx)
	if err != nil || len(stops) != 1 {
		t.Fatalf("%+v, %v", stops, err)
	}
	id := stops[0].ID
	// A confirmation has an entry of the log, and the name of the user who makes it.
	confirm := func(as string) string {
		return fmt.Sprintf("INSERT INTO confirmations (stop, identity, time) VALUES (%d, '%s', 0) ON CONFLICT DO NOTHING", id, as)
	}
	f.refused(t, Operator, confirm("alice"))
	logged := fmt.Sprintf("INSERT INTO log (time, by, action, subject, reason) VALUES (0, 'bob', 'confirm', 'stop %d', '')", id)
	for _, as := range []string{"alice", "bob", "carol"} {
		f.must(t, Operator, fmt.Sprintf("BEGIN; %s; %s; COMMIT", logged, confirm(as)))
	}
	if stops, err = f.Stops(ctx); err != nil || len(stops[0].Confirmed) != 1 || stops[0].Allowed() {
		t.Fatalf("%+v, %v; want one operator to have confirmed it", stops, err)
	}
	if err := f.MayDelete(ctx, d); err == nil {
		t.Fatal("one operator has confirmed it under three names")
	}
	if s, err := f.Confirm(ctx, id, "alice", ""); err != nil || !s.Allowed() {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := f.MayDelete(ctx, d); err != nil {
		t.Fatal(err)
	}
}
