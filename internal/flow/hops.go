package flow

import (
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

// MaxMessageBytes is the most that a message may take. Workers cut their
// results to fit; NATS itself refuses more than 1 MiB.
const MaxMessageBytes = 512 << 10

// A Hop carries one kind of message from one stage to the next.
type Hop[T any] struct {
	Subject string
	encode  func(*T) ([]byte, error)
	decode  func([]byte) (*T, error)
}

// The hops, in the order in which data takes them.
var (
	Walk    = Hop[backup.WalkTask]{"bctl.v1.walk", encodeWalkTask, decodeWalkTask}
	Slices  = Hop[backup.SliceWalked]{"bctl.v1.commit.slice", encodeSliceWalked, decodeSliceWalked}
	Read    = Hop[backup.ReadBatch]{"bctl.v1.read", encodeReadBatch, decodeReadBatch}
	Packs   = Hop[backup.PackStored]{"bctl.v1.commit.pack", encodePackStored, decodePackStored}
	Batches = Hop[backup.BatchStored]{"bctl.v1.commit.batch", encodeBatchStored, decodeBatchStored}
)

const progressSubject = "bctl.v1.progress"

// A queue is a stream with its one consumer: a stage's inbox.
type queue struct{ stream, subjects, consumer string }

var (
	walkQueue   = queue{"BCTL_WALK", "bctl.v1.walk", "walkers"}
	readQueue   = queue{"BCTL_READ", "bctl.v1.read", "readers"}
	commitQueue = queue{"BCTL_COMMIT", "bctl.v1.commit.>", "committers"}
)

// ackWait is how long a worker that says nothing keeps a message.
const ackWait = 60 * time.Second

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

// maxQueued bounds each stream; the dispatcher keeps the queues much shorter.
const maxQueued = 100_000

func (q queue) consumerConfig(ackWait time.Duration) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       q.consumer,
		AckPolicy:     jetstream.AckExplicitPolicy,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckWait:       ackWait,
		MaxDeliver:    -1, // attempts are counted in the index
		MaxAckPending: 10_000,
	}
}
