package open

import (
	"context"
	"log/slog"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/doctor"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/store/s3store"
)

// Doctor returns functions with which a doctor opens what the settings name, as the services do. c
// may be nil if the settings cannot be read.
func Doctor(c *config.Config) doctor.Parts {
	return doctor.Parts{
		Config: c,
		NATS:   func() flow.Options { return natsOptions(c, "bctl doctor") },
		Postgres: func() (string, pgindex.Options, error) {
			dsn, err := postgresURL(&c.Index)
			return dsn, pgindex.Options{ApplicationName: "bctl doctor", MaxConns: 2}, err
		},
		S3: func() (s3store.Options, error) {
			return s3Options(c, slog.New(slog.DiscardHandler), func(*store.Error) {})
		},
		OpenIndex: func(ctx context.Context) (index.Index, error) { return IndexReadOnly(ctx, c) },
		OpenStore: func(ctx context.Context) (store.Store, error) {
			once := *c
			once.Store.Retry = -1 // an unavailable store is a result, so there are no retries
			return Store(ctx, &once, false, slog.New(slog.DiscardHandler))
		},
	}
}
