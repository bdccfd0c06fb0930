package pgindex

import "github.com/bctl/bctl/internal/index/entindex"

// The range is compared as in rangeCondition. bctl_check_forget of migrations/grants.sql makes the
// same comparisons.
const (
	inHeldRange = "shard = $1 AND " + keyPrefix + " >= substring($3::bytea FROM 1 FOR 1024) AND path_key >= $3" +
		" AND " + keyPrefix + " <= substring($4::bytea FROM 1 FOR 1024) AND path_key < $4"
	validInHeld = " AND first_snapshot <= $2 AND (last_snapshot IS NULL OR last_snapshot >= $2)"
)

var pathQueries = entindex.PathQueries{
	Has:   "SELECT 1 FROM pages WHERE " + inHeldRange + validInHeld + " LIMIT 1",
	Began: "SELECT 1 FROM pages WHERE " + inHeldRange + " AND first_snapshot > $2 AND first_snapshot <= $5 AND (last_snapshot IS NULL OR last_snapshot >= $5) LIMIT 1",
	Ended: "SELECT 1 FROM pages WHERE " + inHeldRange + " AND first_snapshot <= $2 AND last_snapshot >= $2 AND last_snapshot < $5 LIMIT 1",
	Pages: "SELECT listing, " + ofBase + " FROM pages WHERE " + inHeldRange + validInHeld,
}
