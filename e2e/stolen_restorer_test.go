package e2e_test

import (
	"path/filepath"
	"testing"
)

// A stolen restorer claims tasks of all sites, and spoils restores. It does not choose what keys
// are given for: neither the snapshot nor what a task is.
func stolenRestorer(t *testing.T, s stolen, pack string) {
	allow(t,
		try{"reads listings", s.sql("SELECT count(*) FROM pages")}, try{"reads a sealed pack", s.s3(read(pack))},
		try{"claims tasks of all sites", s.sql("UPDATE restore_tasks SET attempt = attempt + 1, worker = 'me', recipient = 'mine', keys = NULL")},
		try{"settles tasks", s.sql("UPDATE restore_tasks SET settled = true, result = '{}'")}, try{"makes restores fail", s.sql("UPDATE restores SET failed = 'x', open = 0")},
		try{"ends what keeps snapshots", s.sql("UPDATE readings SET until = 0")},
	)
	refuse(t,
		try{"publishes a slice", s.publishOrEnter("bctl.v1.commit.slice")},
		try{"drains a worker", s.publishOrEnter("bctl.v1.drain.x")},
		try{"plans a restore", s.sql("INSERT INTO restores (id, snapshot, site, target, request, started, open) VALUES (gen_random_uuid(), gen_random_uuid(), 'default', '/', '{}', 1, 1)")},
		try{"adds a task", s.sql("INSERT INTO restore_tasks SELECT * FROM restore_tasks")},
		try{"widens a task", s.sql("UPDATE restore_tasks SET from_key = '', to_key = NULL")},
		try{"makes a part the last task", s.sql("UPDATE restore_tasks SET kind = 2")},
		try{"moves a task to another restore", s.sql("UPDATE restore_tasks SET restore = gen_random_uuid()")},
		try{"restores another snapshot", s.sql("UPDATE restores SET snapshot = gen_random_uuid()")},
		try{"restores to another target", s.sql("UPDATE restores SET target = '/'")},
		try{"changes what is restored", s.sql("UPDATE restores SET request = '{}'")},
		try{"deletes a restore", s.sql("DELETE FROM restores")},
		try{"keeps a snapshot", s.sql("INSERT INTO readings SELECT * FROM readings")},
		try{"keeps another snapshot", s.sql("UPDATE readings SET snapshot = gen_random_uuid()")},
		try{"forgets a snapshot", s.sql("UPDATE snapshots SET forgotten = now()")},
		try{"writes a page", s.sql("INSERT INTO pages SELECT * FROM pages LIMIT 1")},
		try{"moves a chunk", s.sql("UPDATE chunks SET frame = 0")},
		try{"condemns a pack", s.sql("UPDATE packs SET condemned = true")},
		try{"reads the log", s.sql("SELECT * FROM log")},
		try{"becomes an operator in the index", s.sql("SET ROLE bctl_operator")},
		try{"connects as an operator", func() error { return execute(s.dsn("operator"), "SELECT 1") }},
		try{"deletes a pack", s.s3(remove(pack))},
		try{"overwrites a pack", s.s3(put(pack))},
		try{"stores a pack", s.s3(put("packs/00000000000000000000000000000000/00000000000000000000000000000006"))},
		try{"writes a segment", s.s3(put("segments/00000000000000000000000000000000/forged"))},
		try{"overwrites the repository's keys", s.s3(put("repository"))},
	)
	t.Run("has neither the worker key nor an identity", func(t *testing.T) { hasNoKeys(t, s) })
	for _, args := range [][]string{{"restore", "latest", "--target", filepath.Join(t.TempDir(), "x")}, {"check"}, {"drill"}, {"repair", "--yes"}, {"prune"}, {"forget", "--keep-last", "1"}} {
		if out := s.As("restorer").Run(args...); out.Status == 0 || out.Status == 3 {
			t.Errorf("bctl %s: %s", args[0], out)
		}
	}
}
