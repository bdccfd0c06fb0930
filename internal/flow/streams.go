package flow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

// ErrNoStream means that a stream is missing, and its messages are lost.
var ErrNoStream = errors.New("a stream is missing")

// HaveStreams returns nil if all streams exist, ErrNoStream if one does not, ErrOtherRepository if
// one belongs to another repository, or an error that wraps backup.ErrUnavailable if that is
// unknown.
func (c *Conn) HaveStreams(ctx context.Context) error {
	var missing error
	for _, name := range []string{walkStream, readStream, commitStream} {
		stream, err := c.js.Stream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			missing = fmt.Errorf("nats %s: stream %s: %w", c.opts.URL, name, ErrNoStream)
			continue // another stream may belong to another repository
		}
		if err != nil {
			return c.unavailable("stream "+name, err)
		}
		if err := c.others.saw(c.opts.checkOwner("stream "+name, stream.CachedInfo().Config.Metadata)); err != nil {
			return err
		}
	}
	c.storing.noteMissing(missing, time.Now())
	return missing
}

// EnsureStreams makes missing streams and consumers, with queues for the workers of each site,
// repairs those that differ from what they should be, and leaves correct ones alone. It deletes
// queues of removed sites once they are empty. It reports whether a stream was missing, in which
// case its messages are lost. Only one process of a repository may call it at a time. It repairs
// what it can, and the error lists what it could not. It changes nothing if the stream of results
// belongs to another repository: the owner of that stream owns all.
func (c *Conn) EnsureStreams(ctx context.Context, sites []string) (lost bool, err error) {
	var failed []error
	for _, queues := range slices.Backward(streams(sites)) {
		made, err := c.ensureStream(ctx, queues)
		lost = lost || made
		failed = append(failed, err)
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrOtherRepository) || ctx.Err() != nil {
			// Either nobody answers, and the other streams would only take as long, or all streams
			// belong to another repository.
			break
		}
	}
	err = errors.Join(failed...)
	if ctx.Err() == nil {
		c.storing.noteStreams(err, time.Now())
	}
	return lost, err
}

// streams returns the queues of a fleet with these sites, by stream.
func streams(sites []string) [][]queue {
	var list [3][]queue
	for _, site := range sites {
		list[0], list[1] = append(list[0], walkQueue(site)), append(list[1], readQueue(site))
	}
	list[2] = []queue{commitQueue}
	return list[:]
}

// ensureStream makes and repairs one stream and its queues.
func (c *Conn) ensureStream(ctx context.Context, queues []queue) (made bool, err error) {
	if len(queues) == 0 {
		return false, nil
	}
	q := queues[0]
	want := q.streamConfig(max(c.opts.Replicas, 1), c.storage())
	want.Metadata = c.opts.owned()
	if q.stream != commitStream && c.opts.WorkAge > 0 {
		// The server refuses a longer window.
		want.MaxAge, want.Duplicates = c.opts.WorkAge, min(want.Duplicates, c.opts.WorkAge)
	}
	stream, err := c.js.Stream(ctx, q.stream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if stream, err = c.js.CreateStream(ctx, want); err != nil {
			return false, c.unavailable("make stream "+q.stream, err)
		}
		c.log.Log(ctx, c.level(slog.LevelInfo), "stream created", "stream", q.stream, "replicas", want.Replicas)
		return true, c.ensureConsumers(ctx, stream, queues, nil)
	case err != nil:
		return false, c.unavailable("stream "+q.stream, err)
	}
	if err := c.others.saw(c.opts.checkOwner("stream "+q.stream, stream.CachedInfo().Config.Metadata)); err != nil {
		return false, err
	}
	broken := c.repairStream(ctx, stream.CachedInfo().Config, want)
	have, err := c.consumersOf(ctx, stream, q.stream)
	if err != nil {
		return false, errors.Join(broken, err)
	}
	return false, errors.Join(broken, c.ensureConsumers(ctx, stream, queues, have))
}

// consumersOf returns the consumers of a stream by name.
func (c *Conn) consumersOf(ctx context.Context, stream jetstream.Stream, name string) (map[string]*jetstream.ConsumerInfo, error) {
	found := map[string]*jetstream.ConsumerInfo{}
	listed := stream.ListConsumers(ctx)
	for info := range listed.Info() { // to the end, or the sending goroutine is leaked
		found[info.Name] = info
	}
	if err := listed.Err(); err != nil {
		return nil, c.unavailable("consumers of stream "+name, err)
	}
	return found, nil
}

func (c *Conn) storage() jetstream.StorageType {
	if c.opts.Memory {
		return jetstream.MemoryStorage
	}
	return jetstream.FileStorage
}

// repairStream applies a configuration only if it differs: on a cluster, an update may cost
// messages that wait for their redelivery.
func (c *Conn) repairStream(ctx context.Context, have, want jetstream.StreamConfig) error {
	if have.Retention != want.Retention {
		return fmt.Errorf("nats %s: stream %s has the retention %v instead of %v, which cannot be changed: delete the stream, and a committer creates it again: %w",
			c.opts.URL, want.Name, have.Retention, want.Retention, backup.ErrInvalid)
	}
	next, changed := repairedStream(have, want)
	if len(changed) == 0 {
		return nil
	}
	if _, err := c.js.UpdateStream(ctx, next); err != nil {
		return c.unavailable(fmt.Sprintf("repair stream %s (%s)", want.Name, strings.Join(changed, ", ")), err)
	}
	c.log.Warn("stream repaired", "stream", want.Name, "changed", strings.Join(changed, ", "))
	return nil
}

// repairedStream returns have with everything that bctl relies on set as in want, and a list of the
// changes. Storage cannot be changed, and either kind works. Settings that bctl does not depend on
// (placement, compression, description) stay the operator's.
func repairedStream(have, want jetstream.StreamConfig) (next jetstream.StreamConfig, changed []string) {
	next = have
	if !slices.Equal(have.Subjects, want.Subjects) {
		changed = append(changed, fmt.Sprintf("subjects from %v to %v", have.Subjects, want.Subjects))
		next.Subjects = want.Subjects
	}
	set(&changed, "replicas", &next.Replicas, want.Replicas)
	set(&changed, "discard", &next.Discard, want.Discard)
	set(&changed, "maximum messages", &next.MaxMsgs, want.MaxMsgs)
	set(&changed, "maximum messages a subject", &next.MaxMsgsPerSubject, -1)
	set(&changed, "maximum bytes", &next.MaxBytes, -1)
	set(&changed, "maximum message size", &next.MaxMsgSize, want.MaxMsgSize)
	set(&changed, "maximum age", &next.MaxAge, want.MaxAge)
	set(&changed, "duplicate window", &next.Duplicates, want.Duplicates)
	set(&changed, "no acknowledgements", &next.NoAck, false)
	own(&changed, &next.Metadata, want.Metadata)
	return next, changed
}

func set[T comparable](changed *[]string, name string, have *T, want T) {
	if *have != want {
		*changed = append(*changed, fmt.Sprintf("%s from %v to %v", name, *have, want))
		*have = want
	}
}

// ensureConsumers makes and repairs the consumers of one stream; have lists the existing ones.
func (c *Conn) ensureConsumers(ctx context.Context, stream jetstream.Stream, queues []queue, have map[string]*jetstream.ConsumerInfo) error {
	var failed []error
	for _, q := range queues {
		want := q.consumerConfig(c.ackWaitOf(q))
		want.Metadata = c.opts.owned()
		if info := have[q.consumer]; info != nil {
			failed = append(failed, c.repairConsumer(ctx, stream, info.Config, want))
		} else {
			failed = append(failed, c.makeConsumer(ctx, stream, want))
		}
		delete(have, q.consumer)
	}
	for _, info := range have {
		failed = append(failed, c.deleteIfEmpty(ctx, stream, info))
	}
	return errors.Join(failed...)
}

func (c *Conn) makeConsumer(ctx context.Context, stream jetstream.Stream, want jetstream.ConsumerConfig) error {
	if _, err := stream.CreateOrUpdateConsumer(ctx, want); err != nil {
		return c.unavailable("make consumer "+want.Durable, err)
	}
	c.log.Log(ctx, c.level(slog.LevelInfo), "consumer created", "consumer", want.Durable)
	return nil
}

// level returns the log level for the creation of a stream. Streams in memory are made for each
// backup on one machine, and their creation is of no interest to its user.
func (c *Conn) level(l slog.Level) slog.Level {
	if c.opts.Memory {
		return slog.LevelDebug
	}
	return l
}

func (c *Conn) repairConsumer(ctx context.Context, stream jetstream.Stream, have, want jetstream.ConsumerConfig) error {
	next, changed := repairedConsumer(have, want)
	if len(changed) == 0 {
		return nil
	}
	if _, err := stream.UpdateConsumer(ctx, next); err != nil {
		return c.unavailable(fmt.Sprintf("repair consumer %s (%s)", want.Durable, strings.Join(changed, ", ")), err)
	}
	c.log.Warn("consumer repaired", "consumer", want.Durable, "changed", strings.Join(changed, ", "))
	return nil
}

// repairedConsumer is repairedStream for consumers. The way of acknowledging is not compared,
// because the server allows only one for a work queue, and neither is MaxWaiting, which cannot be
// changed. A pause stays: it is how an operator suspends a site's work.
func repairedConsumer(have, want jetstream.ConsumerConfig) (next jetstream.ConsumerConfig, changed []string) {
	next = have
	set(&changed, "filter", &next.FilterSubject, want.FilterSubject)
	if len(have.FilterSubjects) > 0 {
		changed = append(changed, fmt.Sprintf("filters from %v to %s", have.FilterSubjects, want.FilterSubject))
		next.FilterSubjects = nil
	}
	if len(have.BackOff) > 0 {
		changed = append(changed, fmt.Sprintf("back-off from %v to none", have.BackOff))
		next.BackOff = nil
	}
	set(&changed, "acknowledgement wait", &next.AckWait, want.AckWait)
	set(&changed, "maximum deliveries", &next.MaxDeliver, want.MaxDeliver)
	set(&changed, "maximum in hand", &next.MaxAckPending, want.MaxAckPending)
	set(&changed, "replicas", &next.Replicas, 0) // those of the stream
	set(&changed, "rate limit", &next.RateLimit, 0)
	set(&changed, "headers only", &next.HeadersOnly, false)
	set(&changed, "inactive threshold", &next.InactiveThreshold, 0)
	set(&changed, "maximum request", &next.MaxRequestBatch, 0)
	set(&changed, "maximum request time", &next.MaxRequestExpires, 0)
	set(&changed, "maximum request bytes", &next.MaxRequestMaxBytes, 0)
	own(&changed, &next.Metadata, want.Metadata)
	return next, changed
}

// deleteIfEmpty deletes the queue of a removed site if it is empty. A message that arrives at that
// moment waits in the stream until the site returns; its lease does not wait.
func (c *Conn) deleteIfEmpty(ctx context.Context, stream jetstream.Stream, info *jetstream.ConsumerInfo) error {
	ours := strings.HasPrefix(info.Name, walkersPrefix) || strings.HasPrefix(info.Name, readersPrefix)
	if !ours || info.NumPending > 0 || info.NumAckPending > 0 {
		return nil
	}
	err := stream.DeleteConsumer(ctx, info.Name)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return c.unavailable("delete consumer "+info.Name, err)
	}
	c.log.Info("consumer deleted: its site has no filers", "consumer", info.Name)
	return nil
}

func (c *Conn) unavailable(what string, err error) error {
	return fmt.Errorf("nats %s: %s: %w: %w", c.opts.URL, what, err, backup.NATSAway)
}
