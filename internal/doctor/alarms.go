package doctor

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// alarms reports shards whose files look encrypted. Workers may not see them.
func alarms(ctx context.Context, p *Parts) Finding {
	holds, finding := operatorsSee(ctx, p, "holds", index.Index.Holds)
	if finding != nil {
		return *finding
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
