package rebuild

import (
	"context"
	"errors"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/prune"
)

// busyFor is how long a rebuild waits for the end of a prune: longer than the term of a pruner that
// has ended. An index that was restored from a dump has that term if the pruner was at work when
// the dump was made.
const busyFor = 2 * time.Minute

// lead calls do as the leading pruner, as soon as no other process leads.
func lead(ctx context.Context, o *Options, do func(context.Context, index.Term) error) error {
	for end := time.Now().Add(busyFor); ; loop.Pause(ctx, time.Second) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := prune.Lead(ctx, prune.Options{Index: o.Index, Holder: o.Holder}, do)
		if !errors.Is(err, prune.ErrBusy) || time.Now().After(end) {
			return err
		}
	}
}
