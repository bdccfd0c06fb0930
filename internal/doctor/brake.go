package doctor

import (
	"context"
	"errors"
	"io/fs"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/installation"
)

// brake reports deletions that wait for operators. Workers may not see them.
func brake(ctx context.Context, p *Parts) Finding {
	stops, finding := operatorsSee(ctx, p, "what the brake has stopped", index.Index.Stops)
	if finding != nil {
		return *finding
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

// operatorsSee returns a list of the index that operators, committers and pruners may see, or why
// this process does not have it.
func operatorsSee[T any](ctx context.Context, p *Parts, what string, list func(index.Index, context.Context) ([]T, error)) ([]T, *Finding) {
	if p.Role != "" && !p.is(installation.Operator, installation.Committer, installation.Pruner) {
		f := skip("%s does not need it", p.whom())
		return nil, &f
	}
	i, err := p.OpenIndex(ctx)
	if err != nil {
		f := skipWith(err)
		return nil, &f
	}
	defer i.Close()
	found, err := list(i, ctx)
	switch {
	case errors.Is(err, fs.ErrPermission):
		f := skip("this user may not see %s", what)
		return nil, &f
	case err != nil:
		f := skipWith(err)
		return nil, &f
	}
	return found, nil
}
