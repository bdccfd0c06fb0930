package flow

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A task that waits for its filer blocks no other: its place is free, its message is acknowledged,
// and ending it later sends nothing.
func TestStalledDeliveryGivesItsPlaceBack(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	publish(t, c, 1, 2)
	tasks, _ := consumeWalk(t, c, 1)
	first := receive(t, "task", tasks)
	first.delivery.Stalled()
	second := receive(t, "task for the place of the stalled one", tasks)
	if second.task.ID != 2 {
		t.Errorf("task %d", second.task.ID)
	}
	until(t, "only the second is in the queue", func(ctx context.Context) bool { return queued(ctx, c) == 1 })
	first.delivery.Stalled()
	first.delivery.Retry(0)
	first.delivery.Ack()
	publish(t, c, 3)
	until(t, "the second is in hand, and none asked for", func(ctx context.Context) bool {
		info := walkConsumer(ctx, c)
		return info.NumAckPending == 1 && info.NumPending == 1 && info.NumWaiting == 0
	})
	second.delivery.Ack()
	second.delivery.Stalled()
	if third := receive(t, "third task", tasks); third.task.ID != 3 {
		t.Errorf("task %d", third.task.ID)
	}
}

// At most maxStalled deliveries give up their places. Further ones that stall keep theirs, and in
// the end nothing is taken until one of them ends.
func TestStalledDeliveriesAreBounded(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	const limit = 2
	const all = maxStalled + limit
	var ids []backup.TaskID
	for id := range all + 2 {
		ids = append(ids, backup.TaskID(id+1))
	}
	publish(t, c, ids...)
	tasks, _ := consumeWalk(t, c, limit)
	var stalled []taken
	for range all {
		got := receive(t, "task", tasks)
		got.delivery.Stalled()
		stalled = append(stalled, got)
	}
	until(t, "none is in hand or asked for", func(ctx context.Context) bool {
		info := walkConsumer(ctx, c)
		return info.NumAckPending == 0 && info.NumWaiting == 0 && info.NumPending == 2
	})
	if len(tasks) > 0 {
		t.Fatalf("more than %d were taken", all)
	}
	stalled[all-1].delivery.Ack() // of one that kept its place
	receive(t, "task for the place", tasks).delivery.Stalled()
	stalled[0].delivery.Ack() // of one that did not: this frees no place
	stalled[all-2].delivery.Ack()
	receive(t, "task for the other place", tasks)
}

func TestDeliveryThatFailsAgainAndAgainIsLeftToItsLease(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	publish(t, c, 1)
	tasks, _ := consumeWalk(t, c, 1)
	for n := 1; n < maxDeliveries; n++ {
		got := receive(t, "task", tasks)
		if attempts := got.delivery.Attempts(); attempts != n {
			t.Errorf("delivery %d says it is the %dth", n, attempts)
		}
		got.delivery.Retry(0)
	}
	receive(t, "task", tasks).delivery.RetryLater()
	until(t, "the queue is empty", func(ctx context.Context) bool { return queued(ctx, c) == 0 })
}

func TestRetryLaterWaits(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	publish(t, c, 1)
	tasks, _ := consumeWalk(t, c, 1)
	receive(t, "task", tasks).delivery.RetryLater()
	ended := time.Now()
	if again := receive(t, "task again", tasks); again.delivery.Attempts() != 2 {
		t.Errorf("delivery %d", again.delivery.Attempts())
	}
	if waited := time.Since(ended); waited < firstRetry/2 {
		t.Errorf("after %v", waited)
	}
}

func TestRetryDelays(t *testing.T) {
	for n, want := range map[int]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 3: 8 * time.Second, 4: 16 * time.Second, 9: 30 * time.Second, 1 << 20: 30 * time.Second} {
		if got := delayAfter(n); got != want {
			t.Errorf("after delivery %d: %v, want %v", n, got, want)
		}
	}
}

// A burst of tasks is spread: each waiting worker gets one.
func TestBurstIsSpreadOverWorkers(t *testing.T) {
	s := inProcess(t)
	const workers = 8
	c := ready(t, listen(Options{}, s), ackWait)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	got := make(chan int, 4*workers)
	for i := range workers {
		worker := connect(t, listen(Options{}, s), ackWait)
		all.Go(func() {
			worker.ConsumeWalk(ctx, "", 4, func(_ *backup.WalkTask, d *Delivery) { got <- i; d.Ack() })
		})
	}
	for round := range 3 {
		until(t, "all workers wait", func(ctx context.Context) bool { return walkConsumer(ctx, c).NumWaiting == workers })
		each := map[int]int{}
		var sent sync.WaitGroup
		for i := range workers {
			sent.Go(func() {
				if err := Publish(ctx, c, Walk, walkTask(backup.TaskID(i+1))); err != nil {
					t.Error(err)
				}
			})
		}
		sent.Wait()
		for range workers {
			each[receive(t, fmt.Sprintf("task of round %d", round), got)]++
		}
		if len(each) != workers {
			t.Errorf("round %d: tasks by worker %v, want one each", round, each)
		}
	}
}

// A walker with tasks in progress lets others ask first. It waits longer the more tasks it has, and
// not at all when it has none.
func TestWhoHasLessAsksEarlier(t *testing.T) {
	const each = 10 * time.Millisecond
	for _, test := range []struct {
		others int
		end    []time.Duration // when deliveries end
		want   time.Duration
	}{
		{0, nil, 0},
		{1, nil, each},
		{3, nil, 3 * each},
		{2, []time.Duration{3 * time.Millisecond}, 2 * each},
		{2, []time.Duration{3 * time.Millisecond, 5 * time.Millisecond}, 5 * time.Millisecond},
		{3, []time.Duration{25 * time.Millisecond}, 3 * each},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newInHand(8, 0)
			for range test.others + 1 { // its own request has a place as well
				h.free <- struct{}{}
			}
			for _, after := range test.end {
				time.AfterFunc(after, h.leave)
			}
			began := time.Now()
			h.letOthersAsk(t.Context(), each)
			if waited := time.Since(began); waited != test.want {
				t.Errorf("with %d others that end after %v it waited %v, not %v", test.others, test.end, waited, test.want)
			}
		})
	}
}
