package doctor

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/prune"
)

// pruner reports whether something was forgotten and nobody prunes.
func pruner(ctx context.Context, p *Parts) Finding {
	if p.Role != "" && !p.is(installation.Operator, installation.Pruner) {
		return skip("%s does not need it", p.whom())
	}
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return skipWith(err)
	}
	defer i.Close()
	b, err := prune.ReadBacklog(ctx, i)
	if errors.Is(err, fs.ErrPermission) {
		return skip("this user may not see what is forgotten")
	}
	if err != nil {
		return skipWith(err)
	}
	switch ago := b.Now.Sub(b.Last); {
	case !b.Waits():
		return ok("nothing that is forgotten waits for a pruner")
	case b.Last.IsZero():
		return warn("start a pruner (bctl pruner)", "%s not yet deleted, and nothing was ever pruned", plural(b.Snapshots, "forgotten snapshot"))
	case ago > prune.Within:
		return warn("start a pruner (bctl pruner), or read the log of the one that runs (bctl worker ls --role pruner)",
			"%s not yet deleted, and the last prune was %s ago", plural(b.Snapshots, "forgotten snapshot"), duration(ago.Round(time.Minute)))
	default:
		return ok("the last prune was %s ago", duration(ago.Round(time.Second)))
	}
}
