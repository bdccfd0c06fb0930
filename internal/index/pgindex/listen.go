package pgindex

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// begunChannel is what Postgres tells of new snapshots on.
const begunChannel = "bctl_begun"

// ListenBegun implements entindex.Backend. It has a connection of its own: one of the pool would be missing there.
// NOTIFY takes a lock of the whole server as its transaction commits. Snapshots are begun a few a
// second at most; nothing that is written all the time may tell of itself in this way.
func (b *backend) ListenBegun(ctx context.Context, told func()) error {
	config := b.pool.Config()
	if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return b.Wrap(err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // nothing was written
	}()
	if _, err := conn.Exec(ctx, setTimeouts+"; LISTEN "+begunChannel); err != nil {
		return b.Wrap(err)
	}
	for {
		told()
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return b.Wrap(err)
		}
	}
}
