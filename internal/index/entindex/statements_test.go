package entindex

import (
	"fmt"
	"strings"
	"testing"
)

func TestStatements(t *testing.T) {
	d := Dialect{
		ForUpdate: " FOR UPDATE", Now: "now()",
		In: func(column string, n int) string { return fmt.Sprintf("%s = ANY ($%d)", column, n) },
		Rows: func(n int, name string, columns ...string) string {
			return fmt.Sprintf("rows($%d) %s (%s)", n, name, strings.Join(columns, "; "))
		},
		Unhex: func(column string) string { return "unhex(" + column + ")" },
	}
	for _, test := range []struct{ statement, want string }{
		{"SELECT 1", "SELECT 1"},
		{"SELECT '{}' WHERE {id in $1} OR {snapshot_id in $2} ORDER BY id {for update}{for share}", "SELECT '{}' WHERE id = ANY ($1) OR snapshot_id = ANY ($2) ORDER BY id  FOR UPDATE"},
		{"UPDATE t SET path = {unhex h.path}, until = {now} + $1", "UPDATE t SET path = unhex(h.path), until = now() + $1"},
		{"FROM {rows $3 AS h (id bigint, worker text)} WHERE true", "FROM rows($3) h (id bigint; worker text) WHERE true"},
		{on(walkTasks, "SELECT {key} FROM {work}, {work} w", "{key}", "id"), "SELECT id FROM walk_tasks, walk_tasks w"},
	} {
		if got := d.sql(test.statement); got != test.want {
			t.Errorf("%s\nis    %s\nwant: %s", test.statement, got, test.want)
		}
	}
}
