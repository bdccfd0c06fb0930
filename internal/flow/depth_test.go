package flow

import (
	"context"
	"testing"

	"github.com/bctl/bctl/internal/telemetry"
)

// Floor is below the first message that is not acknowledged, although later ones are.
func TestDepthsSayWhatHasPassed(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	depth := func(ctx context.Context) (walk telemetry.Queue) {
		queues, err := c.Depths(ctx, []string{""})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range queues {
			if q.Name == "walk" {
				walk = q
			}
		}
		return walk
	}
	publish(t, c, 1, 2, 3)
	tasks, _ := consumeWalk(t, c, 2)
	first, second := receive(t, "task", tasks), receive(t, "task", tasks)
	second.delivery.Ack()
	third := receive(t, "task", tasks)
	until(t, "one has passed, but not the first", func(ctx context.Context) bool {
		q := depth(ctx)
		return q.Last == 3 && q.Floor == 0 && q.Waiting+q.Unacknowledged == 2
	})
	first.delivery.Ack()
	until(t, "two have passed", func(ctx context.Context) bool {
		q := depth(ctx)
		return q.Last == 3 && q.Floor == 2 && q.Waiting+q.Unacknowledged == 1
	})
	third.delivery.Retry(0)
	until(t, "the third is queued again", func(ctx context.Context) bool {
		q := depth(ctx)
		return q.Floor == 2
	})
	receive(t, "third again", tasks).delivery.Ack()
	publish(t, c, 4)
	until(t, "three have passed", func(ctx context.Context) bool {
		q := depth(ctx)
		return q.Last == 4 && q.Floor == 3
	})
}
