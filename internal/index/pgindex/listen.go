package pgindex

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// snapshotsChannel is the channel on which Postgres announces that snapshots have begun or ended.
// Its name dates from when it announced only new ones: committers of earlier versions listen to it.
const snapshotsChannel = "bctl_begun"

// ListenSnapshots implements entindex.Backend. It opens a connection of its own, so that it does
// not keep one of the pool's. NOTIFY takes a lock of the whole server when its transaction commits.
// That is acceptable for snapshots, of which at most a few begin and end per second, but not for
// anything that is written all the time.
func (b *backend) ListenSnapshots(ctx context.Context, notify func()) error {
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
	if _, err := conn.Exec(ctx, setTimeouts+"; LISTEN "+snapshotsChannel); err != nil {
		return b.Wrap(err)
	}
	for {
		notify()
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return b.Wrap(err)
		}
	}
}
