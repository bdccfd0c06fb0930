package schema

import "github.com/bctl/bctl/internal/backup"

// A Count is a number of a backup.Counts, and the column of snapshots that contains its sum.
type Count[T int64 | float64] struct {
	Column string
	Value  *T
}

// CountIntegers and CountSeconds return the numbers of c. Their columns are no fields of Snapshot:
// ent would generate 180 lines for each, and all of them are always read and written together.
//
// Rows of slice_parts contain the numbers in this order. One may only be appended, with a new
// version of that codec.
func CountIntegers(c *backup.Counts) [14]Count[int64] {
	return [...]Count[int64]{
		{"files", &c.Files},
		{"directories", &c.Directories},
		{"bytes", &c.Bytes},
		{"files_new", &c.FilesNew},
		{"files_changed", &c.FilesChanged},
		{"files_unchanged", &c.FilesUnchanged},
		{"stat_calls", &c.StatCalls},
		{"new_bytes", &c.NewBytes},
		{"stored_bytes", &c.StoredBytes},
		{"read_bytes", &c.ReadBytes},
		{"errors", &c.Errors},
		{"vanished", &c.Vanished},
		{"carried", &c.Carried},
		{"torn", &c.Torn},
	}
}

// CountSeconds is described with CountIntegers.
func CountSeconds(c *backup.Counts) [7]Count[float64] {
	return [...]Count[float64]{
		{"walk_seconds", &c.WalkSeconds},
		{"read_seconds", &c.ReadSeconds},
		{"hash_seconds", &c.HashSeconds},
		{"compress_seconds", &c.CompressSeconds},
		{"seal_seconds", &c.SealSeconds},
		{"upload_seconds", &c.UploadSeconds},
		{"commit_seconds", &c.CommitSeconds},
	}
}
