package flow

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/testenv"
)

// Settings that were changed by hand are restored, and the messages are kept. Correct settings are
// not touched, and the log lists the changes.
func TestStreamsAreRepaired(t *testing.T) {
	var log bytes.Buffer
	o := listen(Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, inProcess(t))
	c := ready(t, o, ackWait)
	publish(t, c, 1)
	ctx := t.Context()
	stream, err := c.js.Stream(ctx, walkStream)
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxMsgs, config.MaxBytes, config.MaxAge, config.Discard = 5, 1<<20, time.Hour, jetstream.DiscardOld
	config.Subjects, config.Description = append(config.Subjects, "elsewhere"), "the operator's"
	if _, err := c.js.UpdateStream(ctx, config); err != nil {
		t.Fatal(err)
	}
	name := walkQueue("").consumer
	consumer := consumerOf(t, c, walkStream, name).Config
	consumer.AckWait, consumer.MaxAckPending, consumer.MaxDeliver = time.Second, 1, 3
	consumer.FilterSubject, consumer.FilterSubjects = "", []string{"bctl.v1.walk.default", "bctl.v1.walk.other"}
	if _, err := c.js.UpdateConsumer(ctx, walkStream, consumer); err != nil {
		t.Fatal(err)
	}

	log.Reset()
	ensure(t, c, backup.DefaultSite)
	for _, want := range []string{"stream repaired", "maximum messages from 5 to 100000", "subjects from", "consumer repaired", "maximum in hand from 1 to 10000", "filters from"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}
	stream, err = c.js.Stream(ctx, walkStream)
	if err != nil {
		t.Fatal(err)
	}
	want := walkQueue("").streamConfig(1, jetstream.MemoryStorage)
	if _, changed := repairedStream(stream.CachedInfo().Config, want); len(changed) > 0 {
		t.Errorf("not repaired: %v", changed)
	}
	if got := stream.CachedInfo().Config.Description; got != "the operator's" {
		t.Errorf("description %q: what is the operator's is left alone", got)
	}
	if _, changed := repairedConsumer(consumerOf(t, c, walkStream, name).Config, walkQueue("").consumerConfig(workAckWait)); len(changed) > 0 {
		t.Errorf("not repaired: %v", changed)
	}
	log.Reset()
	ensure(t, c, backup.DefaultSite)
	if log.Len() > 0 {
		t.Errorf("nothing was wrong:\n%s", log.String())
	}
	tasks, _ := consumeWalk(t, c, 1)
	if got := receive(t, "task of before", tasks); got.task.ID != 1 {
		t.Errorf("task %d", got.task.ID)
	}
}

// A stream that cannot be repaired is named in the error; the others are made nevertheless.
func TestStreamThatCannotBeRepaired(t *testing.T) {
	c := connect(t, listen(Options{}, inProcess(t)), ackWait)
	wrong := walkQueue("").streamConfig(1, jetstream.MemoryStorage)
	wrong.Retention = jetstream.LimitsPolicy
	if _, err := c.js.CreateStream(t.Context(), wrong); err != nil {
		t.Fatal(err)
	}
	lost, err := c.EnsureStreams(t.Context(), []string{backup.DefaultSite})
	if !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), walkStream) || !lost {
		t.Errorf("lost %t, error %v", lost, err)
	}
	consumerOf(t, c, readStream, readQueue("").consumer)
	consumerOf(t, c, commitStream, commitQueue.consumer)
}

// Each site has its queues; those of a removed site stay while there is work in them.
func TestSitesComeAndGo(t *testing.T) {
	c := ready(t, listen(Options{}, inProcess(t)), ackWait)
	ensure(t, c, backup.DefaultSite, "berlin", "paris")
	ctx := t.Context()
	task := walkTask(7)
	task.Job.Site = "berlin"
	if err := Publish(ctx, c, Walk, task); err != nil {
		t.Fatal(err)
	}
	ensure(t, c, backup.DefaultSite)
	consumerOf(t, c, walkStream, "walkers-berlin")
	for stream, name := range map[string]string{walkStream: "walkers-paris", readStream: "readers-berlin"} {
		if _, err := c.js.Consumer(ctx, stream, name); !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	consuming, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	defer func() { cancel(); <-ended }()
	got := make(chan taken, 1)
	go func() {
		defer close(ended)
		c.ConsumeWalk(consuming, "berlin", 1, func(t *backup.WalkTask, d *Delivery) { got <- taken{t, d} })
	}()
	work := receive(t, "task at the site", got)
	if work.task.ID != 7 {
		t.Errorf("task %d", work.task.ID)
	}
	ensure(t, c, backup.DefaultSite)
	consumerOf(t, c, walkStream, "walkers-berlin") // its task is in progress
	work.delivery.Ack()
	until(t, "the queue is gone", func(ctx context.Context) bool {
		ensure(t, c, backup.DefaultSite)
		_, err := c.js.Consumer(ctx, walkStream, "walkers-berlin")
		return errors.Is(err, jetstream.ErrConsumerNotFound)
	})
	ensure(t, c, backup.DefaultSite, "berlin") // the site is back
	task.ID = 8
	if err := Publish(ctx, c, Walk, task); err != nil {
		t.Fatal(err)
	}
	if work := receive(t, "task at the site that is back", got); work.task.ID != 8 {
		t.Errorf("task %d", work.task.ID)
	}
}

func TestHaveStreams(t *testing.T) {
	c := connect(t, listen(Options{}, inProcess(t)), ackWait)
	if err := c.HaveStreams(t.Context()); !errors.Is(err, ErrNoStream) {
		t.Errorf("without streams: %v", err)
	}
	ensure(t, c, backup.DefaultSite)
	if err := c.HaveStreams(t.Context()); err != nil {
		t.Error(err)
	}
	for _, name := range []string{walkStream, readStream, commitStream} {
		if err := c.js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		if err := c.HaveStreams(t.Context()); !errors.Is(err, ErrNoStream) || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
		ensure(t, c, backup.DefaultSite)
	}
	c.nc.Close()
	if err := c.HaveStreams(t.Context()); !errors.Is(err, backup.ErrUnavailable) {
		t.Errorf("without a connection: %v", err)
	}
}

func ensure(t *testing.T, c *Conn, sites ...string) {
	t.Helper()
	if _, err := c.EnsureStreams(t.Context(), sites); err != nil {
		t.Fatal(err)
	}
}

func consumerOf(t *testing.T, c *Conn, stream, name string) *jetstream.ConsumerInfo {
	t.Helper()
	consumer, err := c.js.Consumer(t.Context(), stream, name)
	if err != nil {
		t.Fatalf("consumer %s: %v", name, err)
	}
	return consumer.CachedInfo()
}

// Work that no worker takes is deleted once its lease has expired: work of a cancelled snapshot
// does not stay for ever at a site without workers. Results stay until they are taken.
func TestWorkThatNobodyTakesGoes(t *testing.T) {
	t.Parallel()
	s := testenv.NATS(t)
	before := ready(t, Options{URL: s.URL()}, ackWait) // an older keeper
	publish(t, before, 1)
	c := connect(t, Options{URL: s.URL(), WorkAge: time.Second}, ackWait)
	ensure(t, c, backup.DefaultSite)
	if err := Publish(t.Context(), c, Slices, &backup.SliceWalked{Snapshot: backup.SnapshotID{1}, Task: 1, Attempt: 1, Last: true}); err != nil {
		t.Fatal(err)
	}
	publish(t, c, 2)
	until(t, "the tasks are gone", func(ctx context.Context) bool { return queued(ctx, c) == 0 })
	results, err := c.js.Stream(t.Context(), commitStream)
	if err != nil || results.CachedInfo().State.Msgs != 1 || results.CachedInfo().Config.MaxAge != 0 {
		t.Errorf("results: %+v, %v", results.CachedInfo(), err)
	}
}
