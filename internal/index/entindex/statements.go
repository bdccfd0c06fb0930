package entindex

import (
	"context"
	"database/sql"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// SQLite allows 32,766 parameters per statement.
const (
	listLength = 10_000 // of the list that is one parameter
	insertRows = 500    // of a VALUES (…), (…) list
)

// marker matches what Dialect.sql replaces.
var marker = regexp.MustCompile(`\{(?:` +
	`(?P<clause>for update|for share|skip locked|now)|` +
	`(?P<column>\w+) in \$(?P<list>\d)|` +
	`unhex (?P<hex>[\w.]+)|` +
	`rows \$(?P<rows>\d) AS (?P<name>\w+) \((?P<columns>[^)]+)\)` +
	`)\}`)

// sql returns a statement in the database's SQL. It replaces
//
//	{for update}, {for share}, {skip locked}   with these clauses, where the database has them
//	{now}                                      with Dialect.Now
//	{id in $1}                                 with Dialect.In("id", 1)
//	{unhex h.path}                             with Dialect.Unhex("h.path")
//	{rows $1 AS h (id bigint, worker text)}    with Dialect.Rows(1, "h", "id bigint", "worker text")
func (d *Dialect) sql(statement string) string {
	if !strings.Contains(statement, "{") {
		return statement
	}
	return marker.ReplaceAllStringFunc(statement, func(text string) string {
		found := marker.FindStringSubmatch(text)
		part := func(name string) string { return found[marker.SubexpIndex(name)] }
		number := func(name string) int { n, _ := strconv.Atoi(part(name)); return n } // digits
		switch {
		case part("clause") != "":
			return map[string]string{"for update": d.ForUpdate, "for share": d.ForShare, "skip locked": d.SkipLocked, "now": d.Now}[part("clause")]
		case part("column") != "":
			return d.In(part("column"), number("list"))
		case part("hex") != "":
			return d.Unhex(part("hex"))
		}
		return d.Rows(number("rows"), part("name"), strings.Split(part("columns"), ", ")...)
	})
}

// exec runs a statement (see Dialect.sql) of the transaction.
func (tx *Tx) exec(ctx context.Context, statement string, args ...any) error {
	_, err := tx.change(ctx, statement, args...)
	return err
}

// change is exec, and returns the number of changed rows.
func (tx *Tx) change(ctx context.Context, statement string, args ...any) (int, error) {
	result, err := tx.ExecContext(ctx, tx.sql(statement), args...)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	return int(n), err
}

// execList runs a statement for a list that is its parameter 1, several times if the list is long.
// It does nothing for an empty list. The statement is planned anew.
func (tx *Tx) execList(ctx context.Context, statement string, ids []int64, args ...any) error {
	for group := range slices.Chunk(ids, listLength) {
		if err := tx.exec(ctx, statement, tx.anew(append([]any{tx.List(group)}, args...)...)...); err != nil {
			return err
		}
	}
	return nil
}

// anew returns the arguments of a statement that is planned anew (see Dialect.PlanAnew).
func (tx *Tx) anew(args ...any) []any {
	if tx.PlanAnew == nil {
		return args
	}
	return append([]any{tx.PlanAnew}, args...)
}

// Each runs a query (see Dialect.sql) of the transaction and calls do for each row.
func (tx *Tx) Each(ctx context.Context, query string, args []any, do func(scan func(...any) error) error) error {
	rows, err := tx.QueryContext(ctx, tx.sql(query), args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := do(rows.Scan); err != nil {
			rows.Close()
			return err
		}
	}
	return closeRows(rows)
}

// eachOf is Tx.Each for a query with a list, in the way of execList.
func eachOf[T int64 | uuid.UUID](ctx context.Context, tx *Tx, query string, list []T, do func(scan func(...any) error) error) error {
	for group := range slices.Chunk(list, listLength) {
		if err := tx.Each(ctx, query, tx.anew(tx.List(group)), do); err != nil {
			return err
		}
	}
	return nil
}

// each is a query that calls do for each row: Tx.Each, or Index.query.
type each func(ctx context.Context, query string, args []any, do func(scan func(...any) error) error) error

// listOf returns the results of read for the rows of a query.
func listOf[T any](ctx context.Context, each each, query string, args []any, read func(scan func(...any) error) (T, error)) ([]T, error) {
	list := []T{}
	err := each(ctx, query, args, func(scan func(...any) error) error {
		value, err := read(scan)
		list = append(list, value)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// oneColumn reads a row of one column.
func oneColumn[T any](scan func(...any) error) (value T, err error) {
	err = scan(&value)
	return value, err
}

// mapOf returns the rows of a query that has a key and a value in each.
func mapOf[K comparable, V any](ctx context.Context, each each, query string, args ...any) (map[K]V, error) {
	found := map[K]V{}
	err := each(ctx, query, args, func(scan func(...any) error) error {
		var key K
		var value V
		err := scan(&key, &value)
		found[key] = value
		return err
	})
	return found, err
}

// insertAll inserts a row of values for each element of list.
func insertAll[T any](ctx context.Context, tx *Tx, head string, list []T, values func(*T) []any) error {
	for group := range slices.Chunk(list, insertRows) {
		rows := make([][]any, len(group))
		for i := range group {
			rows[i] = values(&group[i])
		}
		query, args := tx.insertStatement(head, rows, "")
		if _, err := tx.ExecContext(ctx, query, args...); err != nil {
			return err
		}
	}
	return nil
}

func (d *Dialect) insertStatement(head string, values [][]any, tail string) (string, []any) {
	var query strings.Builder
	query.WriteString(head)
	args := make([]any, 0, len(values)*len(values[0]))
	for _, row := range values {
		for i, value := range row {
			switch {
			case i > 0:
				query.WriteString(",")
			case len(args) > 0:
				query.WriteString("),(")
			default:
				query.WriteString("(")
			}
			args = append(args, value)
			if d.Numbered {
				query.WriteString("$" + strconv.Itoa(len(args)))
			} else {
				query.WriteString("?")
			}
		}
	}
	query.WriteString(")" + tail)
	return query.String(), args
}

// closeRows ends a query whose rows have been read or are not needed.
func closeRows(rows *sql.Rows) error {
	for rows.Next() { // a statement that writes is complete only when its rows have been read
	}
	if err := rows.Err(); err != nil {
		rows.Close()
		return err
	}
	return rows.Close()
}
