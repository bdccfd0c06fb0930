package doctor

import (
	"context"
	"errors"
	"io/fs"

	"github.com/bctl/bctl/internal/installation"
)

// brake reports deletions that wait for operators. Workers may not see them.
func brake(ctx context.Context, p *Parts) Finding {
	if p.Role != "" && !p.is(installation.Operator, installation.Committer, installation.Pruner) {
		return skip("%s does not need it", p.whom())
	}
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return skipWith(err)
	}
	defer i.Close()
	stops, err := i.Stops(ctx)
	if errors.Is(err, fs.ErrPermission) {
		return skip("this user may not see what the brake has stopped")
	}
	if err != nil {
		return skipWith(err)
	}
	waiting := 0
	for n := range stops {
		if stops[n].Waits() {
			waiting++
		}
	}
	if waiting > 0 {
		return warn("bctl confirm ls shows what would be deleted, and bctl confirm ID confirms or rejects it",
			"the brake has stopped %s until operators confirm", plural(waiting, "large deletion"))
	}
	return ok("no large deletion waits for a confirmation")
}
