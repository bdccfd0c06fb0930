package doctor

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/bctl/bctl/internal/installation"
)

// prunesWithin is longer than the time between two passes of a pruner.
const prunesWithin = 2 * time.Hour

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
	forgotten, err := i.Forgotten(ctx)
	if errors.Is(err, fs.ErrPermission) {
		return skip("this user may not see what is forgotten")
	}
	if err != nil {
		return skipWith(err)
	}
	work, err := i.PruneWork(ctx)
	if err != nil {
		return skipWith(err)
	}
	prunes, err := i.Prunes(ctx)
	if err != nil {
		return skipWith(err)
	}
	waits := 0
	for n := range forgotten {
		if !forgotten[n].Needed {
			waits++
		}
	}
	switch n := len(prunes); {
	case waits == 0 && work.Condemned == 0:
		return ok("nothing that is forgotten waits for a pruner")
	case n == 0:
		return warn("start a pruner (bctl pruner)", "%s not yet deleted, and nothing was ever pruned", plural(waits, "forgotten snapshot"))
	case work.Now.Sub(prunes[n-1].Ended) > prunesWithin:
		return warn("start a pruner (bctl pruner), or read the log of the one that runs (bctl worker ls --role pruner)",
			"%s not yet deleted, and the last prune was %s ago", plural(waits, "forgotten snapshot"), duration(work.Now.Sub(prunes[n-1].Ended).Round(time.Minute)))
	}
	return ok("the last prune was %s ago", duration(work.Now.Sub(prunes[len(prunes)-1].Ended).Round(time.Second)))
}
