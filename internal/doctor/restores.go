package doctor

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/installation"
)

// restoreSettles is how long a restore may take to get restorers and keys.
const restoreSettles = 5 * time.Minute

// restores reports restores by restorers that do not go on.
func restores(ctx context.Context, p *Parts) Finding {
	if p.Role != "" && !p.is(installation.Operator, installation.Restorer) {
		return skip("%s does not need it", p.whom())
	}
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return skipWith(err)
	}
	defer i.Close()
	now, err := i.Clock(ctx)
	if err != nil {
		return skipWith(err)
	}
	all, err := i.Restores(ctx)
	if errors.Is(err, fs.ErrPermission) {
		return skip("this user may not see restores")
	}
	if err != nil {
		return skipWith(err)
	}
	return judgeRestores(all, now)
}

// judgeRestores reports the first restore that needs something.
func judgeRestores(all []index.Restore, now time.Time) Finding {
	const again = "run bctl restore --fleet with this target again, or end the restore with --abandon"
	running := 0
	for i := range all {
		r := &all[i]
		switch {
		case r.Failed != "":
			return warn(again, "the restore to %q at site %s has failed: %s", r.Target, r.Site, r.Failed)
		case r.Open == 0:
			return warn(again, "the restore to %q at site %s has ended, and nobody has read its result", r.Target, r.Site)
		case now.Sub(r.Started) < restoreSettles:
		case r.Working == 0:
			return warn("start a restorer there (bctl restorer), or read the logs of those that run (bctl worker ls --role restorer)",
				"no restorer at site %s works on the restore to %q", r.Site, r.Target)
		case r.Waiting == r.Working:
			return warn(again, "the restorers of the restore to %q at site %s wait for keys", r.Target, r.Site)
		}
		running++
	}
	if running == 0 {
		return ok("no restore by restorers runs")
	}
	return ok("%s by restorers", plural(running, "restore"))
}
