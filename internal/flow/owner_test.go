package flow

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv"
)

var ours, theirs = backup.RepositoryID{1}, backup.RepositoryID{2}

// The first keeper owns its streams. The keeper of another repository does not change them, its
// services take nothing from them, and all of them report why.
func TestQueuesBelongToARepository(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	c := ready(t, Options{URL: s.URL(), Repository: ours}, ackWait)
	other := connect(t, Options{URL: s.URL(), Repository: theirs}, ackWait)
	publish(t, c, 1)
	before := consumerOf(t, c, walkStream, walkQueue("").consumer).Config

	if err := other.HaveStreams(t.Context()); !errors.Is(err, ErrOtherRepository) {
		t.Errorf("the other finds streams: %v", err)
	}
	lost, err := other.EnsureStreams(t.Context(), []string{backup.DefaultSite, "elsewhere"})
	if !errors.Is(err, ErrOtherRepository) || lost {
		t.Errorf("the other mends streams: lost %t, %v", lost, err)
	}
	if _, err := c.js.Consumer(t.Context(), walkStream, "walkers-elsewhere"); !errors.Is(err, jetstream.ErrConsumerNotFound) {
		t.Errorf("the other made a queue in them: %v", err)
	}
	if after := consumerOf(t, c, walkStream, walkQueue("").consumer).Config; after.Metadata[repositoryKey] != before.Metadata[repositoryKey] {
		t.Errorf("the queue has become %v", after.Metadata)
	}

	worker := connect(t, Options{URL: s.URL(), Repository: theirs}, ackWait)
	taken, _ := consumeWalk(t, worker, 1)
	until(t, "the other's worker is not ready", func(context.Context) bool { return errors.Is(worker.Ready(), ErrOtherRepository) })
	tasks, _ := consumeWalk(t, c, 1)
	receive(t, "task", tasks).delivery.Ack()
	if len(taken) > 0 {
		t.Error("the other's worker has taken a task")
	}
	if err := c.Ready(); err != nil {
		t.Errorf("whose queues they are: %v", err)
	}

	// Once the streams are deleted, the next keeper makes its own, and its worker continues by
	// itself.
	for _, name := range Streams() {
		if err := c.js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	ensure(t, other, backup.DefaultSite)
	publish(t, other, 2)
	receive(t, "task of the other", taken).delivery.Ack()
	if err := worker.Ready(); err != nil {
		t.Errorf("with queues of its own: %v", err)
	}
	until(t, "the first one's worker sees it", func(context.Context) bool { return errors.Is(c.Ready(), ErrOtherRepository) })
}

// The owner of the stream of results owns all streams: two keepers that start at the same time do
// not get one stream each.
func TestOneRepositoryHasAllStreams(t *testing.T) {
	s := inProcess(t)
	c, other := connect(t, listen(Options{Repository: ours}, s), ackWait), connect(t, listen(Options{Repository: theirs}, s), ackWait)
	ensure(t, c) // it has no filers yet
	if _, err := other.EnsureStreams(t.Context(), []string{backup.DefaultSite}); !errors.Is(err, ErrOtherRepository) {
		t.Errorf("the other makes the rest: %v", err)
	}
	ensure(t, c, backup.DefaultSite)
	// A missing stream does not hide the owner of the others.
	if err := c.js.DeleteStream(t.Context(), commitStream); err != nil {
		t.Fatal(err)
	}
	if err := other.HaveStreams(t.Context()); !errors.Is(err, ErrOtherRepository) {
		t.Errorf("the other finds streams: %v", err)
	}
}

// The streams of an older bctl belong to the first keeper of this version. Messages of older
// services are taken, and older services take what is sent to them: they ignore the header.
func TestQueuesOfAnOlderVersion(t *testing.T) {
	s := inProcess(t)
	old := ready(t, listen(Options{}, s), ackWait)
	c := connect(t, listen(Options{Repository: ours}, s), ackWait)
	tasks, stop := consumeWalk(t, c, 1)
	publish(t, old, 1)
	receive(t, "task of an older committer", tasks).delivery.Ack()
	if err := c.HaveStreams(t.Context()); err != nil {
		t.Error(err)
	}
	ensure(t, c, backup.DefaultSite)
	for stream, consumer := range map[string]string{walkStream: walkQueue("").consumer, readStream: readQueue("").consumer, commitStream: commitQueue.consumer} {
		if owner := consumerOf(t, c, stream, consumer).Config.Metadata[repositoryKey]; owner != ours.String() {
			t.Errorf("%s belongs to %q", consumer, owner)
		}
		have, err := c.js.Stream(t.Context(), stream)
		if err != nil || have.CachedInfo().Config.Metadata[repositoryKey] != ours.String() {
			t.Errorf("stream %s: %v, %v", stream, have.CachedInfo().Config.Metadata, err)
		}
	}
	// An older keeper may lead again: it finds nothing to repair.
	ensure(t, old, backup.DefaultSite)
	if owner := consumerOf(t, c, walkStream, walkQueue("").consumer).Config.Metadata[repositoryKey]; owner != ours.String() {
		t.Errorf("after the older keeper the queue belongs to %q", owner)
	}
	publish(t, old, 2)
	receive(t, "task of an older committer", tasks).delivery.Ack()
	stop()
	oldTasks, _ := consumeWalk(t, old, 1)
	publish(t, c, 3)
	if got := receive(t, "task at an older worker", oldTasks); got.task.ID != 3 {
		t.Errorf("task %d", got.task.ID)
	}
}

// A message of another repository is handed back at once, and its results and reports are ignored,
// no matter who owns the queue.
func TestMessagesOfAnotherRepositoryAreHandedBack(t *testing.T) {
	s := inProcess(t)
	none := ready(t, listen(Options{}, s), ackWait) // the queues have no owner
	c, other := connect(t, listen(Options{Repository: ours}, s), ackWait), connect(t, listen(Options{Repository: theirs}, s), ackWait)
	heard := make(chan string, 10)
	stop, err := c.SubscribeProgress(func(p *backup.Progress) { heard <- p.Worker })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, report := range []struct {
		from   *Conn
		worker string
	}{{other, "theirs"}, {c, "ours"}} {
		if err := errors.Join(report.from.PublishProgress(&backup.Progress{Worker: report.worker}), report.from.nc.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	if worker := receive(t, "report", heard); worker != "ours" {
		t.Errorf("heard of %q", worker)
	}

	publish(t, other, 1)
	publish(t, c, 2)
	mine, stopMine := consumeWalk(t, c, 1)
	if got := receive(t, "task", mine); got.task.ID != 2 {
		t.Errorf("took task %d of another repository", got.task.ID)
	} else {
		got.delivery.Ack()
	}
	stopMine()
	tasks, _ := consumeWalk(t, other, 1)
	got := receive(t, "task of the other", tasks)
	if got.task.ID != 1 || got.delivery.Attempts() < 2 {
		t.Errorf("task %d at delivery %d", got.task.ID, got.delivery.Attempts())
	}
	got.delivery.Ack()
	until(t, "the queue is empty", func(ctx context.Context) bool { return queued(ctx, none) == 0 })
}
