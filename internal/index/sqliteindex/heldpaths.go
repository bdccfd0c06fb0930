package sqliteindex

import "github.com/bctl/bctl/internal/index/entindex"

const inHeldRange = "shard = ?1 AND path_key >= ?3 AND path_key < ?4"

// Few pages change from one snapshot to the next, so the queries of changes search by snapshot.
var pathQueries = entindex.PathQueries{
	Has:   "SELECT 1 FROM pages INDEXED BY pages_path WHERE " + inHeldRange + validIn + " LIMIT 1",
	Began: "SELECT 1 FROM pages INDEXED BY pages_first WHERE " + inHeldRange + " AND first_snapshot > ?2 AND first_snapshot <= ?5 AND (last_snapshot IS NULL OR last_snapshot >= ?5) LIMIT 1",
	Ended: "SELECT 1 FROM pages INDEXED BY pages_last WHERE " + inHeldRange + " AND first_snapshot <= ?2 AND last_snapshot >= ?2 AND last_snapshot < ?5 LIMIT 1",
	Pages: "SELECT listing, " + ofBase + " FROM pages INDEXED BY pages_path WHERE " + inHeldRange + validIn,
}
