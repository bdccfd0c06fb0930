package entindex

import (
	"strings"
	"time"

	"github.com/google/uuid"
)

// The tables of open work. They are not entities of ent: all statements on them are in this
// package. A statement for both tables calls the table {work}.
const (
	walkTasks   = "walk_tasks"
	readBatches = "read_batches"
)

// on returns a statement for one of the tables. pairs alternates further placeholders in the
// statement and their replacements.
func on(table, statement string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		statement = strings.ReplaceAll(statement, pairs[i], pairs[i+1])
	}
	return strings.ReplaceAll(statement, "{work}", table)
}

// noLease is the end of the lease of work that was never claimed, or that may be claimed again at
// once.
var noLease = time.Unix(0, 0).UTC()

// An openTask has the columns of walk_tasks by which results are judged. An openBatch has those of
// read_batches.
type openTask struct {
	snapshot            uuid.UUID
	attempt, generation int32
}

type openBatch struct {
	snapshot uuid.UUID
	attempt  int32
	names    []byte // digest of the paths and keys of its pages
}
