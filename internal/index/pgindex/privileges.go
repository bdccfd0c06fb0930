package pgindex

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bctl/bctl/migrations"
)

// Privileges compares the privileges of this connection's user with those that roles need.
type Privileges struct {
	Tables  int      // number of tables that were checked; 0: there are none
	Missing []string // such as "UPDATE of packs (condemned)", "TEMPORARY"
	Extra   []string // privileges that none of the roles needs
}

// Privileges checks each column of each table of the index against the named roles of
// migrations.Privileges. A user with several roles needs the privileges of all of them.
func (i *Inspection) Privileges(ctx context.Context, roles []string) (Privileges, error) {
	var p Privileges
	// A table's INSERT privilege covers all of its columns; DELETE and TRUNCATE have no column
	// privileges.
	rows, err := i.conn.Query(ctx, `
WITH tables AS (
    SELECT oid, relname FROM pg_class
    WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('goose_db_version'))
      AND relkind IN ('r', 'p') AND NOT relispartition)
SELECT t.relname, action, a.attname, has_column_privilege(t.oid, a.attnum, action)
FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) AS action
UNION ALL
SELECT relname, action, '', has_table_privilege(oid, action) FROM tables CROSS JOIN unnest(ARRAY['DELETE', 'TRUNCATE']) AS action
ORDER BY 1, 2, 3`)
	if err != nil {
		return p, i.b.Wrap(err)
	}
	var table, action, column, last string
	var has bool
	var missing, extra columns
	_, err = pgx.ForEachRow(rows, []any{&table, &action, &column, &has}, func() error {
		if table != last {
			p.Tables++
			last = table
		}
		switch needs := needed(roles, table, action, column); {
		case needs && !has:
			missing.add(table, action, column)
		case has && !needs:
			extra.add(table, action, column)
		}
		return nil
	})
	if err != nil {
		return p, i.b.Wrap(err)
	}
	p.Missing, p.Extra = missing.texts(), extra.texts()
	var temporary bool
	if err := i.conn.QueryRow(ctx, "SELECT has_database_privilege(current_database(), 'TEMPORARY')").Scan(&temporary); err != nil {
		return p, i.b.Wrap(err)
	}
	if !temporary && slices.Contains(roles, "committer") {
		p.Missing = append(p.Missing, "TEMPORARY of the database")
	}
	return p, nil
}

func needed(roles []string, table, action, column string) bool {
	return slices.ContainsFunc(migrations.Privileges, func(p migrations.Privilege) bool {
		return slices.Contains(roles, p.Role) && slices.Contains(p.Tables, table) && slices.Contains(p.Actions, action) &&
			(p.Columns == nil || column == "" || slices.Contains(p.Columns, column))
	})
}

// columns are privileges of columns, sorted by table and action.
type columns []struct {
	what  string
	names []string
}

func (c *columns) add(table, action, column string) {
	what := action + " of " + table
	if n := len(*c); n == 0 || (*c)[n-1].what != what {
		*c = append(*c, struct {
			what  string
			names []string
		}{what: what})
	}
	if column != "" {
		last := &(*c)[len(*c)-1]
		last.names = append(last.names, column)
	}
}

// texts returns the privileges as texts, each with its first column.
func (c *columns) texts() []string {
	var list []string
	for _, of := range *c {
		text := of.what
		switch len(of.names) {
		case 0:
		case 1:
			text += " (" + of.names[0] + ")"
		default:
			text += " (" + of.names[0] + ", …)"
		}
		list = append(list, text)
	}
	return list
}
