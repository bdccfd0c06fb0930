package flow

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

// sendSlice publishes the result of a task.
func sendSlice(t testing.TB, c *Conn, id backup.TaskID) {
	t.Helper()
	if err := Publish(t.Context(), c, Slices, &backup.SliceWalked{Snapshot: backup.SnapshotID{1}, Task: id, Attempt: 1, Last: true}); err != nil {
		t.Fatal(err)
	}
}

// consumeResults takes results in the background. ended is closed when ConsumeResults has returned.
func consumeResults(ctx, work context.Context, c *Conn) (results <-chan Received, ended <-chan struct{}) {
	out, end := make(chan Received, 100), make(chan struct{})
	go func() {
		defer close(end)
		c.ConsumeResults(ctx, work, 8, func(r Received) { out <- r })
	}()
	return out, end
}

// An older keeper has made the queues, and an older committer dies with a result. When a newer
// keeper leads, another committer gets the result after the newer keeper's time, which is shorter.
func TestResultsOfAnOlderCommitter(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	older := ready(t, listen(Options{}, s), 20*time.Second)
	results, _ := consumeResults(t.Context(), t.Context(), older)
	sendSlice(t, older, 1)
	receive(t, "result", results)
	c := ready(t, listen(Options{}, s), ackWait)
	older.nc.Close()
	died := time.Now()
	results, _ = consumeResults(t.Context(), t.Context(), c)
	again := receive(t, "result of the dead committer", results)
	if took := time.Since(died); took >= workAckWait {
		t.Errorf("it came after %v", took)
	}
	again.Delivery.Ack()
	if got := consumerOf(t, c, commitStream, commitQueue.consumer).Config.AckWait; got != resultAckWait {
		t.Errorf("results wait %v, want %v", got, resultAckWait)
	}
	if got := consumerOf(t, c, walkStream, walkQueue("").consumer).Config.AckWait; got != workAckWait {
		t.Errorf("tasks wait %v, want %v", got, workAckWait)
	}
}

// A committer that stops finishes its transactions, and nobody else gets their results meanwhile.
// Another result, which is not kept alive, is delivered again and again and serves as the clock.
func TestResultsAreKeptWhileTheCommitterStops(t *testing.T) {
	t.Parallel()
	const ackWait = 300 * time.Millisecond
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	ctx, stop := context.WithCancel(t.Context())
	results, ended := consumeResults(ctx, t.Context(), c)
	sendSlice(t, c, 1)
	held := receive(t, "result", results)
	stop()
	until(t, "no result is asked for", func(context.Context) bool {
		return consumerOf(t, c, commitStream, commitQueue.consumer).NumWaiting == 0
	})
	sendSlice(t, c, 2)
	deliverAgain(t, c, commitStream, commitQueue.consumer, func(data []byte) {
		slice, err := Slices.decode(data)
		if err != nil || slice.Task != 2 {
			t.Fatalf("%+v was delivered again: %v", slice, err)
		}
	})
	select {
	case <-ended:
		t.Error("the consumer has ended before its result")
	default:
	}
	held.Delivery.Ack()
	receive(t, "end of the consumer", ended)
}

// A transaction that hangs does not keep a committer from stopping.
func TestStopDoesNotWaitForAResultForEver(t *testing.T) {
	t.Parallel()
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	ctx, stop := context.WithCancel(t.Context())
	work, giveUp := context.WithCancel(t.Context())
	results, ended := consumeResults(ctx, work, c)
	sendSlice(t, c, 1)
	receive(t, "result", results)
	stop()
	giveUp()
	receive(t, "end of the consumer", ended)
}

// countedMsg counts its reports.
type countedMsg struct {
	jetstream.Msg
	mu      sync.Mutex
	reports int
}

func (m *countedMsg) InProgress() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reports++
	return nil
}

// What is in progress is reported often enough, and what is soon done is not reported at all.
func TestReportsOfMessagesInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ackWait = 4 * time.Second
		h := newInHand(1000, 0)
		ctx, end := context.WithCancel(t.Context())
		go h.keepAlive(ctx, ackWait)
		time.Sleep(300 * time.Millisecond) //nolint:forbidigo // the time is that of the bubble
		slow := &countedMsg{}
		h.add(slow)
		var short []*countedMsg
		for range 200 { // for 20 seconds
			m := &countedMsg{}
			h.add(m)
			short = append(short, m)
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // the time is that of the bubble
			h.forget(m)
		}
		if slow.reports < 18 || slow.reports > 20 {
			t.Errorf("%d reports of the slow message in 20 s, want one per second", slow.reports)
		}
		for _, m := range short {
			if m.reports > 0 {
				t.Errorf("%d reports of a message that was done in 0.1 s", m.reports)
			}
		}
		end()
		synctest.Wait()
		if slow.reports < 19 {
			t.Errorf("%d reports at the end", slow.reports)
		}
	})
}
