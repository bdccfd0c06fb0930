package doctor

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/bctl/bctl/internal/installation"
)

// scrubbed reports packs that scrubs have found to be damaged, or have not proven in time.
func scrubbed(ctx context.Context, p *Parts) Finding {
	if p.Role != "" && !p.is(installation.Operator, installation.Scrubber) {
		return skip("%s does not need it", p.whom())
	}
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return skipWith(err)
	}
	defer i.Close()
	s, err := i.Scrub(ctx)
	if errors.Is(err, fs.ErrPermission) {
		return skip("this user may not see what is proven")
	}
	if err != nil {
		return skipWith(err)
	}
	prove := "run bctl scrub daily"
	if p.Config.Fleet() {
		prove = "start a scrubber (bctl scrubber), or raise its limits (bctl scrub show)"
	}
	switch {
	case s.DamagedPacks > 0:
		return fail("bctl check lists the affected files, and bctl repair has them stored again",
			"scrubs have found %s to be damaged or missing", plural(int(s.DamagedPacks), "pack"))
	case s.LatePacks > 0:
		return warn(prove, "%s not proven to be undamaged for more than %s", plural(int(s.LatePacks), "pack"), duration(s.Within))
	case s.Journal.Damaged > 0:
		return fail("bctl check shows whether the index needs them, and bctl repair has them written again",
			"scrubs have found %s of the journal to be damaged", plural(int(s.Journal.Damaged), "object"))
	case s.Parity.Damaged > 0:
		return fail("bctl repair puts them back", "scrubs have found %s to be damaged or missing", plural(int(s.Parity.Damaged), "parity object"))
	case s.Parity.Late > 0:
		return warn(prove, "parity is not proven to be undamaged for more than %s", duration(s.Within))
	case s.Journal.Late > 0:
		return warn(prove, "the journal is not proven to be undamaged for more than %s", duration(s.Within))
	case s.UndatedPacks > 0:
		return warn(prove+"; bctl scrub --all proves everything at once", "%s not proven to be undamaged since the index was rebuilt, or was upgraded from a version that had no proofs", plural(int(s.UndatedPacks), "pack"))
	case s.Packs == 0:
		return ok("there are no packs to prove")
	}
	return ok("all packs were stored or proven within the last %s", duration(s.Now.Sub(s.Oldest).Round(time.Minute)))
}
