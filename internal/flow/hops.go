package flow

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

// MaxMessageBytes is the maximum size of a message. Workers split their results to fit; NATS itself
// refuses more than 1 MiB.
const MaxMessageBytes = 512 << 10

// A Hop carries one kind of message from one stage to the next. A hop to workers has one subject
// per site: Subject, a dot, and the site's name.
type Hop[T any] struct {
	Subject string
	encode  func(*T) ([]byte, error)
	decode  func([]byte) (*T, error)
	site    func(*T) string // nil: one subject
}

func (h *Hop[T]) subject(message *T) string {
	if h.site == nil {
		return h.Subject
	}
	return h.Subject + "." + backup.SiteName(h.site(message))
}

// The hops, in the order in which data takes them. Publish sends their messages. ConsumeWalk
// (walkers), ConsumeRead (readers) and ConsumeResults (committers) receive them.
var (
	Walk    = Hop[backup.WalkTask]{"bctl.v1.walk", encodeWalkTask, decodeWalkTask, func(t *backup.WalkTask) string { return t.Job.Site }}
	Slices  = Hop[backup.SliceWalked]{"bctl.v1.commit.slice", encodeSliceWalked, decodeSliceWalked, nil}
	Read    = Hop[backup.ReadBatch]{"bctl.v1.read", encodeReadBatch, decodeReadBatch, func(b *backup.ReadBatch) string { return b.Job.Site }}
	Packs   = Hop[backup.PackStored]{"bctl.v1.commit.pack", encodePackStored, decodePackStored, nil}
	Lists   = Hop[backup.ListsStored]{"bctl.v1.commit.list", encodeListsStored, decodeListsStored, nil}
	Batches = Hop[backup.BatchStored]{"bctl.v1.commit.batch", encodeBatchStored, decodeBatchStored, nil}
)

const (
	progressSubject = "bctl.v1.progress"
	presentSubject  = "bctl.v1.present" // of a worker's process: followed by a dot and its instance
)

// A queue is a consumer of a stream: the inbox of a stage, with one per site for walkers and
// readers.
type queue struct {
	stream, subjects, consumer, filter string
	ackWait                            time.Duration
}

const (
	walkStream   = "BCTL_WALK"
	readStream   = "BCTL_READ"
	commitStream = "BCTL_COMMIT"

	walkersPrefix = "walkers-" // of consumers, before the site
	readersPrefix = "readers-"
)

func walkQueue(site string) queue {
	site = backup.SiteName(site)
	return queue{walkStream, "bctl.v1.walk.*", walkersPrefix + site, "bctl.v1.walk." + site, workAckWait}
}

func readQueue(site string) queue {
	site = backup.SiteName(site)
	return queue{readStream, "bctl.v1.read.*", readersPrefix + site, "bctl.v1.read." + site, workAckWait}
}

var commitQueue = queue{commitStream, "bctl.v1.commit.>", "committers", "bctl.v1.commit.>", resultAckWait}

// An ackWait is how long a message stays with a process that does not report it as in progress.
const (
	// workAckWait is long: tasks and batches are done twice if a worker is paused for longer. The
	// keeper finds the work of dead workers earlier.
	workAckWait = 20 * time.Second
	// resultAckWait is short: a result that is applied twice costs little, because the second time
	// it is late. Results that a dead committer held are delivered again only because of it.
	resultAckWait = 4 * time.Second
)

func (q queue) streamConfig(replicas int, storage jetstream.StorageType) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:       q.stream,
		Subjects:   []string{q.subjects},
		Retention:  jetstream.WorkQueuePolicy,
		Storage:    storage,
		Replicas:   replicas,
		Discard:    jetstream.DiscardNew,
		MaxMsgs:    maxQueued,
		MaxMsgSize: MaxMessageBytes + 4096,
		Duplicates: 30 * time.Second,
	}
}

// maxQueued bounds the messages in each stream; the dispatcher keeps the queues much shorter.
const maxQueued = 100_000

func (q queue) consumerConfig(ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       q.consumer,
		FilterSubject: q.filter,
		AckPolicy:     jetstream.AckExplicitPolicy,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckWait:       ackWait,
		MaxDeliver:    -1, // attempts are counted in the index
		MaxAckPending: 10_000,
		// Workers of a site: a further request gets no answer until another is answered.
		MaxWaiting: 4096,
	}
}
