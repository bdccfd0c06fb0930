package entindex

import (
	"fmt"
	"math"

	"entgo.io/ent/dialect/sql"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/schema"
)

// maxCount is the largest value of a count, and of a sum of counts.
const maxCount = backup.MaxCount

func validCounts(c *backup.Counts) bool {
	for _, n := range schema.CountIntegers(c) {
		if *n.Value < 0 || *n.Value > maxCount {
			return false
		}
	}
	for _, n := range schema.CountSeconds(c) {
		if !(*n.Value >= 0 && *n.Value <= maxCount) || math.IsNaN(*n.Value) {
			return false
		}
	}
	return true
}

// validCorrection is validCounts for a batch, whose files and bytes correct the counts of the
// walker: files that had vanished when they were to be read are subtracted.
func validCorrection(c *backup.Counts) bool {
	rest := *c
	if rest.Files < -maxCount || rest.Bytes < -maxCount {
		return false
	}
	rest.Files, rest.Bytes = max(rest.Files, 0), max(rest.Bytes, 0)
	return validCounts(&rest)
}

// withCounts adds the columns of the counts to a query of snapshots, for countsOf.
func withCounts(s *sql.Selector) {
	for _, column := range countColumns() {
		s.AppendSelect(s.C(column))
	}
}

func countColumns() []string {
	var columns []string
	for _, n := range schema.CountIntegers(&backup.Counts{}) {
		columns = append(columns, n.Column)
	}
	for _, n := range schema.CountSeconds(&backup.Counts{}) {
		columns = append(columns, n.Column)
	}
	return columns
}

// countsOf returns the counts of a row of a query withCounts.
func countsOf(row *ent.Snapshot) (c backup.Counts, err error) {
	for _, n := range schema.CountIntegers(&c) {
		if *n.Value, err = valueOf[int64](row, n.Column); err != nil {
			return backup.Counts{}, err
		}
	}
	for _, n := range schema.CountSeconds(&c) {
		if *n.Value, err = valueOf[float64](row, n.Column); err != nil {
			return backup.Counts{}, err
		}
	}
	return c, nil
}

func valueOf[T int64 | float64](row *ent.Snapshot, column string) (T, error) {
	value, err := row.Value(column)
	if err != nil {
		return 0, err
	}
	n, ok := value.(T)
	if !ok {
		return 0, fmt.Errorf("%s of snapshot %s is %v: %w", column, backup.SnapshotID(row.ID).Short(), value, backup.ErrCorrupt)
	}
	return n, nil
}

// countValues returns sums as the values of countColumns. They are limited to the range from 0 to
// maxCount, so that no forged result can produce a sum that the database refuses.
func countValues(c backup.Counts) []any {
	var values []any
	for _, n := range schema.CountIntegers(&c) {
		values = append(values, max(0, min(*n.Value, maxCount)))
	}
	for _, n := range schema.CountSeconds(&c) {
		values = append(values, *n.Value)
	}
	return values
}
