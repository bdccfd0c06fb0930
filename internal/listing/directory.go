package listing

import (
	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/internal/backup"
)

// DirectoryID returns the DirectoryID of a path within its shard.
func DirectoryID(path string) backup.DirectoryID {
	sum := blake3.Sum256([]byte(path))
	return backup.DirectoryID(sum[:16])
}
