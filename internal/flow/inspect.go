package flow

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

// MinServer is the oldest version of a NATS server that supports everything a Conn uses. It
// introduced requests that update a consumer without creating it.
const MinServer = "2.10.0"

// ErrNoJetStream means that the server, or this client's account, has no JetStream.
var ErrNoJetStream = errors.New("JetStream is not enabled")

// A Server is one of the servers that an address names.
type Server struct {
	Name    string // without a password, for display
	address string
}

// Servers returns the servers of a comma-separated list.
func Servers(urls string) []Server {
	var list []Server
	for text := range strings.SplitSeq(urls, ",") {
		if text = strings.TrimSpace(text); text != "" {
			list = append(list, Server{redacted(text), text})
		}
	}
	return list
}

// An Inspection is a connection to one server for inspection only. It does not reconnect. It is not
// safe for concurrent use.
type Inspection struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	opts Options
}

// Inspect connects to the server as Connect does, but tries only once. The error wraps
// backup.ErrUnavailable, or backup.ErrInvalid if a file of the options does not exist.
func Inspect(ctx context.Context, o Options, at Server) (*Inspection, error) {
	o.Log = slog.New(slog.DiscardHandler)
	o.URL = at.Name
	options, err := o.natsOptions(&outage{Options: o})
	if err != nil {
		return nil, err
	}
	wait := 5 * time.Second
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end))
	}
	dial := &dialer{Dialer: net.Dialer{Timeout: wait}}
	options = append(options, nats.RetryOnFailedConnect(false), nats.NoReconnect(), nats.Timeout(wait), nats.SetCustomDialer(dial),
		// The default prints to standard error.
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	nc, err := nats.Connect(at.address, options...)
	if errors.Is(err, nats.ErrNoServers) && dial.failed != nil {
		err = dial.failed
	}
	if err != nil {
		return nil, fmt.Errorf("nats %s: %w: %w", at.Name, err, backup.ErrUnavailable)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("nats %s: %w", at.Name, err)
	}
	return &Inspection{nc, js, o}, nil
}

// A dialer remembers why it failed: the client reports only that no server is available.
type dialer struct {
	net.Dialer
	failed error
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	conn, err := d.Dialer.Dial(network, address)
	d.failed = err
	return conn, err
}

// Close disconnects.
func (i *Inspection) Close() { i.nc.Close() }

// ServerFacts describe a server.
type ServerFacts struct {
	Name, Version, Cluster string
	MaxPayloadBytes        int64
	Open                   bool                 // it does not authenticate clients
	TLS                    *tls.ConnectionState // nil: none
	Local                  bool                 // it is on this machine
}

// Facts returns what the server reported when it was connected to.
func (i *Inspection) Facts() ServerFacts {
	f := ServerFacts{
		Name: i.nc.ConnectedServerName(), Version: i.nc.ConnectedServerVersion(), Cluster: i.nc.ConnectedClusterName(),
		MaxPayloadBytes: i.nc.MaxPayload(), Open: !i.nc.AuthRequired(),
	}
	if state, err := i.nc.TLSConnectionState(); err == nil {
		f.TLS = &state
	}
	if ip, err := i.nc.GetClientIP(); err == nil {
		f.Local = ip.IsLoopback()
	}
	return f
}

// Enough reports whether the server is MinServer or later. It is false if the version cannot be
// parsed.
func (f *ServerFacts) Enough() bool { return !olderVersion(f.Version, MinServer) }

// olderVersion compares the numbers of versions such as 2.10.3-beta.1 and 2.9.
func olderVersion(a, b string) bool {
	numbers := func(version string) (list []int) {
		version, _, _ = strings.Cut(version, "-")
		for part := range strings.SplitSeq(version, ".") {
			n, err := strconv.Atoi(part)
			if err != nil {
				return nil
			}
			list = append(list, n)
		}
		return list
	}
	return slices.Compare(numbers(a), numbers(b)) < 0
}

// RoundTrip returns how long the server takes to answer: the median of n round trips.
func (i *Inspection) RoundTrip(n int) (time.Duration, error) {
	times := make([]time.Duration, 0, n)
	for range n {
		took, err := i.nc.RTT()
		if err != nil {
			return 0, i.failed("ask for the round trip", err)
		}
		times = append(times, took)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// A StreamState is the state of one stream.
type StreamState struct {
	Name     string
	Owner    string // the repository; empty: none yet
	Storage  string // file or memory
	Replicas int
	Leader   string // empty if the server is not part of a cluster
	Behind   []string
	Messages uint64
	Wrong    []string // what the keeper would repair, as it logs it
	Fixed    []string // what the keeper could not repair

	// Clock is the server's clock; Sent and Received are when it was requested and received.
	Clock, Sent, Received time.Time
}

// Streams returns the names of all streams.
func Streams() []string { return []string{walkStream, readStream, commitStream} }

// Stream returns the state of a stream. The error wraps ErrNoStream, ErrNoJetStream, ErrDenied, or
// backup.ErrUnavailable.
func (i *Inspection) Stream(ctx context.Context, name string) (StreamState, error) {
	if err := i.Has(ctx, publishing(jsAPI+"STREAM.INFO."+name)); err != nil {
		return StreamState{}, err // the request would not be answered
	}
	s := StreamState{Name: name}
	var stream jetstream.Stream
	err := patiently(ctx, func(ctx context.Context) (err error) {
		s.Sent = time.Now()
		stream, err = i.js.Stream(ctx, name)
		s.Received = time.Now()
		return err
	})
	if err != nil {
		return s, i.failed("stream "+name, err)
	}
	info := stream.CachedInfo()
	s.Owner = info.Config.Metadata[repositoryKey]
	s.Storage, s.Replicas, s.Messages, s.Clock = strings.ToLower(info.Config.Storage.String()), info.Config.Replicas, info.State.Msgs, info.TimeStamp
	s.Leader, s.Behind = replicas(info.Cluster)
	want := queueOf(name, backup.DefaultSite).streamConfig(max(i.opts.Replicas, 1), jetstream.FileStorage)
	// The values that the keeper derives from the committers' leases are not known here.
	want.MaxAge, want.Duplicates = info.Config.MaxAge, info.Config.Duplicates
	_, s.Wrong = repairedStream(info.Config, want)
	if info.Config.Retention != want.Retention {
		s.Fixed = append(s.Fixed, fmt.Sprintf("it keeps messages by %v instead of %v", info.Config.Retention, want.Retention))
	}
	return s, nil
}

// patiently repeats a request that is not answered: a cluster that elects a leader loses requests.
func patiently(ctx context.Context, ask func(context.Context) error) error {
	for {
		once, cancel := context.WithTimeout(ctx, askAgain)
		err := ask(once)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}

const askAgain = 2 * time.Second

func queueOf(stream, site string) queue {
	switch stream {
	case walkStream:
		return walkQueue(site)
	case readStream:
		return readQueue(site)
	}
	return commitQueue
}

// replicas returns the leader of a group, and the members that lag behind it.
func replicas(c *jetstream.ClusterInfo) (leader string, behind []string) {
	if c == nil {
		return "", nil
	}
	for _, r := range c.Replicas {
		switch {
		case r.Offline:
			behind = append(behind, r.Name+" is offline")
		case !r.Current:
			behind = append(behind, r.Name+" is behind")
		}
	}
	if c.Leader == "" {
		behind = append(behind, "there is no leader")
	}
	return c.Leader, behind
}

// A QueueState is the state of a site's queue.
type QueueState struct {
	Name    string
	Owner   string // the repository; empty: none yet
	Leader  string
	Behind  []string
	Pending uint64 // messages that wait
	InHand  int
	Waiting int           // requests of workers that wait for a message
	Paused  time.Duration // time left
	Wrong   []string      // what the keeper would repair

	// Clock is the server's clock; Sent and Received are when it was requested and received.
	Clock, Sent, Received time.Time
}

// Queue returns the state of a stream's queue at a site. The error wraps ErrNoQueue, ErrNoStream,
// ErrNoJetStream, ErrDenied, or backup.ErrUnavailable.
func (i *Inspection) Queue(ctx context.Context, stream, site string) (QueueState, error) {
	q := queueOf(stream, site)
	s := QueueState{Name: q.consumer}
	if err := i.Has(ctx, publishing(jsAPI+"CONSUMER.INFO."+q.stream+"."+q.consumer)); err != nil {
		return s, err
	}
	var consumer jetstream.Consumer
	err := patiently(ctx, func(ctx context.Context) (err error) {
		s.Sent = time.Now()
		consumer, err = i.js.Consumer(ctx, q.stream, q.consumer)
		s.Received = time.Now()
		return err
	})
	if err != nil {
		return s, i.failed("queue "+q.consumer, err)
	}
	info := consumer.CachedInfo()
	s.Clock, s.Owner = info.TimeStamp, info.Config.Metadata[repositoryKey]
	s.Pending, s.InHand, s.Waiting = info.NumPending, info.NumAckPending, info.NumWaiting
	if info.Paused {
		s.Paused = info.PauseRemaining
	}
	s.Leader, s.Behind = replicas(info.Cluster)
	_, s.Wrong = repairedConsumer(info.Config, q.consumerConfig(q.ackWait))
	return s, nil
}

// ErrNoQueue means that a queue is missing; messages for it wait in the stream.
var ErrNoQueue = errors.New("a queue is missing")

func (i *Inspection) failed(what string, err error) error {
	kind := backup.ErrUnavailable
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		kind = ErrNoStream
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		kind = ErrNoQueue
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount), errors.Is(err, nats.ErrNoResponders):
		kind = ErrNoJetStream
	}
	return fmt.Errorf("nats %s: %s: %w: %w", i.opts.URL, what, kind, err)
}
