package wire

import (
	"context"
	"fmt"
	"math"
	"net/url"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
)

// openPostgres connects with the password that is set outside of the URL, if any.
func openPostgres(ctx context.Context, c *config.Config) (index.Index, error) {
	dsn := c.Index.URL
	if c.Index.Password != "" {
		u, err := url.Parse(dsn)
		if err != nil {
			return nil, fmt.Errorf("index.url cannot be parsed: %w", backup.ErrInvalid) // the error would repeat it
		}
		u.User = url.UserPassword(u.User.Username(), c.Index.Password)
		dsn = u.String()
	}
	return pgindex.Open(ctx, dsn, pgindex.Options{MaxConns: int32(min(c.Index.MaxConnections, math.MaxInt32))})
}
