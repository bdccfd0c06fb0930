package pgindex

import "context"

// vacuumed are the tables that have names of files.
var vacuumed = []string{"pages", "interrupted_pages", "problems", "purges"}

// Vacuum removes the rows that were deleted from the tables with names of files, beside
// transactions. Postgres overwrites the space when it uses it again. Its log, dumps and standbys
// keep what they have. Only the owner of the tables can do it.
func (x *Index) Vacuum(ctx context.Context) error {
	for _, table := range vacuumed {
		if _, err := x.backend.pool.Exec(ctx, "VACUUM "+table); err != nil {
			return x.backend.Wrap(err)
		}
	}
	return nil
}
