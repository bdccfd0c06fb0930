package installation

import (
	"fmt"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/listing"
)

// putPage inserts versions of page 0 of a directory without bctl.
func (f *forgetting) putPage(t *testing.T, dir string, first, last int, files ...string) {
	t.Helper()
	page := backup.Page{Path: dir}
	for _, name := range files {
		page.Entries = append(page.Entries, backup.Entry{Name: name, Kind: backup.File})
	}
	directory := listing.DirectoryID(dir)
	data, err := listing.Encode(nil, &page)
	if err != nil {
		t.Fatal(err)
	}
	end := "NULL"
	if last > 0 {
		end = fmt.Sprint(last)
	}
	f.must(t, Admin, fmt.Sprintf(`INSERT INTO pages (shard, page, first_snapshot, last_snapshot, inode, directory, fingerprint, digest, path_key, listing)
		VALUES (%d, 0, %d, %s, 0, '%x', '%[4]x', '', '\x%[5]x', '\x%[6]x')`, f.shard.ID, first, end, directory[:], backup.PathKey(dir), data))
}

// An operator who forgets without bctl cannot forget a version of a held directory. Of a held file,
// an entry of the log must say that bctl has read the listings.
func TestHoldsOnPathsInTheDatabase(t *testing.T) {
	f := withSnapshots(t)
	f.putPage(t, "", 1, 0, "x")
	f.putPage(t, "same", 1, 0, "x")
	f.putPage(t, "changed", 1, 1, "x")
	f.putPage(t, "changed", 2, 0, "x", "y")
	f.putPage(t, "gone", 1, 1, "x")
	forget := func(n int, more string) string {
		id := f.snapshots[n]
		return fmt.Sprintf("BEGIN; %s INSERT INTO log (time, by, action, subject, reason) VALUES (0, 'me', 'forget', '%s', ''); UPDATE snapshots SET forgotten = now() WHERE id = '%s'; COMMIT", more, id, id)
	}
	for _, test := range []struct {
		path    string
		kept    bool
		checked bool // whether an entry of the log lets the database trust bctl
	}{
		{"same", false, false}, {"same/x", false, false}, {"changed", true, false}, {"gone", true, false}, {"changed/x", true, true}, {"gone/x", true, true},
	} {
		hold, err := f.AddHold(t.Context(), index.Hold{Shard: f.shard.ID, Path: test.path, By: "me", Reason: "audit"})
		if err != nil {
			t.Fatal(err)
		}
		if !test.kept {
			f.must(t, Operator, "BEGIN; UPDATE snapshots SET forgotten = now() WHERE id = '"+f.snapshots[0].String()+"'; ROLLBACK")
		} else {
			for _, role := range []Role{Operator, Committer} {
				f.refused(t, role, forget(0, ""))
				f.must(t, role, "ROLLBACK")
				if !test.checked {
					f.refused(t, role, forget(0, fmt.Sprintf("INSERT INTO log (time, by, action, subject, reason) VALUES (0, 'me', 'checked', 'hold %d snapshot %s', '');", hold.ID, f.snapshots[0])))
					f.must(t, role, "ROLLBACK")
				}
			}
		}
		if err := f.RemoveHold(t.Context(), hold.ID, "me", ""); err != nil {
			t.Fatal(err)
		}
	}
	// The file has not changed, though its directory has.
	if _, err := f.AddHold(t.Context(), index.Hold{Shard: f.shard.ID, Path: "changed/x", By: "me", Reason: "audit"}); err != nil {
		t.Fatal(err)
	}
	if err := f.Forgetting.Forget(t.Context(), f.snapshots[0], "me", ""); err != nil {
		t.Error(err)
	}
}

// A change of retention that an operator makes without bctl is refused unless the same transaction
// writes it to the log. The database records who made it.
func TestRetentionIsLogged(t *testing.T) {
	f := withSnapshots(t)
	ctx := t.Context()
	if _, err := f.AddHold(ctx, index.Hold{Snapshot: f.snapshots[0], By: "me", Reason: "audit"}); err != nil {
		t.Fatal(err)
	}
	if err := f.SetBad(ctx, f.snapshots[0], "me", "damaged"); err != nil {
		t.Fatal(err)
	}
	if err := f.SetBad(ctx, f.snapshots[0], "me", ""); err != nil {
		t.Fatal(err)
	}
	p := backup.Policy{Name: "nightly", Schedule: "@daily", Retention: backup.Retention{Daily: 30}}
	if _, err := f.SetPolicy(ctx, p, "me"); err != nil {
		t.Fatal(err)
	}
	p.Retention.Daily = 7
	if _, err := f.SetPolicy(ctx, p, "me"); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		fmt.Sprintf("INSERT INTO holds (snapshot, reason, by, since) VALUES ('%s', '', 'me', 0)", f.snapshots[1]),
		"DELETE FROM holds",
		"UPDATE shards SET retired = true", "UPDATE filers SET retired = true",
		fmt.Sprintf("UPDATE snapshots SET bad = 'x' WHERE id = '%s'", f.snapshots[0]), // was logged, in another transaction
		`UPDATE policies SET retention = '{"daily": 1}', revision = revision + 1`,
		`UPDATE policies SET labels = '{"a": "b"}'`, "UPDATE policies SET paused = true", "DELETE FROM policies",
		`INSERT INTO policies (name, schedule, retention, selection) VALUES ('other', '@daily', '{}', '{}')`,
		// The entry is of another change than that which is made.
		`BEGIN; INSERT INTO log (time, by, action, subject, reason) VALUES (0, 'me', 'policy', 'policy nightly', '{"was": null, "is": null}');
			UPDATE policies SET retention = '{"daily": 1}'; COMMIT`,
	} {
		f.refused(t, Operator, statement)
		_, _ = f.conns[Operator].Exec(ctx, "ROLLBACK")
	}
	f.must(t, Operator, "UPDATE policies SET jitter = 1000000") // keeps what it did

	holds, err := f.Holds(ctx)
	if err != nil || len(holds) != 1 || holds[0].Login == "" || time.Since(holds[0].Since).Abs() > time.Minute {
		t.Fatalf("holds %+v, %v", holds, err)
	}
	f.refused(t, Operator, "INSERT INTO holds (snapshot, reason, by, since, login) VALUES (NULL, '', 'me', 0, 'another')")
	for _, remove := range []error{
		f.RemoveHold(ctx, holds[0].ID, "me", "done"), f.RemovePolicy(ctx, "nightly", "me"), f.RetireShard(ctx, f.shard.ID, "me"),
		f.RetireFiler(ctx, f.shard.Filer, "me"),
	} {
		if remove != nil {
			t.Error(remove)
		}
	}
	var log string
	for e, err := range f.Log(ctx, time.Now().Add(-time.Hour)) {
		if err != nil {
			t.Fatal(err)
		}
		log += e.Action + " "
		if e.Login != holds[0].Login {
			t.Errorf("entry %+v by another user than %s", e, holds[0].Login)
		}
	}
	if want := "hold mark-bad mark-good policy policy release policy retire retire "; log != want {
		t.Errorf("log %s, want %s", log, want)
	}
}
