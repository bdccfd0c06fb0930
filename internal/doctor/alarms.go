package doctor

import (
	"context"
	"errors"
	"io/fs"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/installation"
)

// alarms reports shards whose files look encrypted. Workers may not see them.
func alarms(ctx context.Context, p *Parts) Finding {
	if p.Role != "" && !p.is(installation.Operator, installation.Committer, installation.Pruner) {
		return skip("%s does not need it", p.whom())
	}
	i, err := p.OpenIndex(ctx)
	if err != nil {
		return skipWith(err)
	}
	defer i.Close()
	holds, err := i.Holds(ctx)
	if errors.Is(err, fs.ErrPermission) {
		return skip("this user may not see holds")
	}
	if err != nil {
		return skipWith(err)
	}
	open := 0
	for n := range holds {
		if holds[n].Alarm != (backup.SnapshotID{}) {
			open++
		}
	}
	if open > 0 {
		return warn("bctl churn names the snapshots, and bctl churn ack SNAPSHOT --reason TEXT acknowledges an alarm",
			"files of %s look encrypted, and nobody has acknowledged the alarm", plural(open, "shard"))
	}
	return ok("no shard has an alarm")
}
