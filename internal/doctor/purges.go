package doctor

import (
	"context"
	"errors"
	"io/fs"

	"github.com/bctl/bctl/internal/installation"
)

// purges reports purges that are not complete: content that was to be removed may be in the store.
func purges(ctx context.Context, p *Parts) Finding {
	if p.Role != "" && !p.is(installation.Operator) {
		return skip("%s does not need it", p.whom())
	}
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return skipWith(err)
	}
	defer i.Close()
	states, err := i.PurgeStates(ctx)
	if errors.Is(err, fs.ErrPermission) {
		return skip("this user may not see purges")
	}
	if err != nil {
		return skipWith(err)
	}
	if len(states) > 0 {
		s := &states[0]
		return warn("bctl purge --resume goes on", "%s not complete, the first since %s: %s to be written again, %s deleted",
			plural(len(states), "purge"), s.Started.Format("2006-01-02 15:04"), plural(int(s.Stale), "record"), plural(int(s.Objects), "object"))
	}
	return ok("all purges are complete")
}
