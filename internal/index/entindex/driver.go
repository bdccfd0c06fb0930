package entindex

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/bctl/bctl/internal/index/ent"
)

// NewClient returns ent over a pool, or over a transaction (a *sql.Tx, or a *sql.Conn that is in
// one) that the caller commits.
func NewClient(dialectName string, over entsql.ExecQuerier) *ent.Client {
	driver := entsql.NewDriver(dialectName, entsql.Conn{ExecQuerier: over})
	switch over.(type) {
	case *sql.Tx, *sql.Conn:
		return ent.NewClient(ent.Driver(txDriver{driver}))
	}
	return ent.NewClient(ent.Driver(driver))
}

// A txDriver is in a transaction already: transactions that ent begins are this one.
type txDriver struct{ *entsql.Driver }

func (d txDriver) Tx(context.Context) (dialect.Tx, error) { return dialect.NopTx(d), nil }

// maxTries bounds how often a transaction that lost a conflict is tried.
const maxTries = 10

// Retry calls do until its error is not one that lost reports, at most maxTries times, with growing
// pauses. Once ctx is done, each error also wraps that of ctx: drivers often report instead how the
// end of ctx affected the connection or the transaction.
func Retry(ctx context.Context, lost func(error) bool, do func() error) error {
	for try := 1; ; try++ {
		err := do()
		if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
		if err == nil || !lost(err) || try == maxTries {
			return err
		}
		wait := time.Duration(rand.Int64N(int64(time.Millisecond) << try))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}
