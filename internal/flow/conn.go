package flow

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/internal/backup"
)

// Options say how to reach NATS.
type Options struct {
	URL         string // comma-separated for a cluster
	Name        string // of this client, for the server's monitoring
	Credentials string // file of a JWT and its seed; empty: none
	User        string
	Password    string
	CAFile      string
	CertFile    string
	KeyFile     string
	InboxPrefix string // the replies' subjects, where permissions want one; empty: _INBOX

	// Repository is whose queues and messages these are to be; zero: it is not looked at.
	Repository backup.RepositoryID

	Replicas int  // of the streams: 1, or 3 on a cluster
	Memory   bool // keep streams in the server's memory
	// WorkAge is how long streams keep messages to workers; 0: until they are taken. It is no less than the lease that such a message
	// has: then another attempt has taken its place, or its snapshot has ended.
	WorkAge time.Duration

	// InProcess connects to a server in this process instead of URL.
	InProcess nats.InProcessConnProvider
	Log       *slog.Logger
	// Moved, if not nil, is called whenever a consumer asks for messages, or looks whether it may: it
	// does so every few seconds, also while NATS is away.
	Moved func()
	// MayTake, if not nil, is asked before each request for a message: while it returns an error, none is taken.
	MayTake func(context.Context) error
	// Dropped, if not nil, is called for each message that cannot be decoded, and is dropped.
	Dropped func()
}

// A Conn is a connection to NATS. It reconnects for ever. All methods may be
// called concurrently.
type Conn struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	opts Options
	log  *slog.Logger
	out  *outage

	others others

	ackWait time.Duration // shorter in tests

	instance string // of this process: see presence.go
	steady   steady
}

// Connect connects to NATS. Where the server does not answer at once it
// returns all the same, and keeps trying: a service may start before NATS does.
func Connect(o Options) (*Conn, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Moved == nil {
		o.Moved = func() {}
	}
	if o.MayTake == nil {
		o.MayTake = func(context.Context) error { return nil }
	}
	if o.Dropped == nil {
		o.Dropped = func() {}
	}
	address := o.URL
	o.URL = redacted(o.URL) // from here on it is only for messages
	out := &outage{Options: o}
	options, err := o.natsOptions(out)
	if err != nil {
		return nil, err
	}
	if slices.Contains(strings.Split(o.URL, ","), notURL) {
		return nil, fmt.Errorf("nats %s: %w", o.URL, backup.ErrInvalid) // why would repeat it, with its password
	}
	nc, err := nats.Connect(address, options...)
	if err != nil {
		return nil, fmt.Errorf("nats %s: %w: %w", o.URL, err, backup.ErrInvalid)
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(256))
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("nats %s: %w", o.URL, err)
	}
	return &Conn{nc: nc, js: js, opts: o, log: o.Log, out: out, ackWait: ackWait, instance: rand.Text(), steady: steady{wait: steadyFor}}, nil
}

const notURL = "(not a URL)"

// redacted returns a comma-separated list of URLs without their passwords.
func redacted(urls string) string {
	list := strings.Split(urls, ",")
	for i, text := range list {
		text = strings.TrimSpace(text)
		const scheme = "nats://" // which NATS adds where there is none
		without := !strings.Contains(text, "://")
		if without {
			text = scheme + text
		}
		switch u, err := url.Parse(text); {
		case err != nil:
			list[i] = notURL
		case without:
			list[i] = strings.TrimPrefix(redactedURL(u), scheme)
		default:
			list[i] = redactedURL(u)
		}
	}
	return strings.Join(list, ",")
}

// redactedURL returns the URL without its password; a user alone is a token.
func redactedURL(u *url.URL) string {
	if _, ok := u.User.Password(); u.User != nil && !ok {
		u.User = url.User("xxxxx")
	}
	return u.Redacted()
}

// An outage is the time in which NATS does not answer. It is told of at its
// beginning, at its end, and every now and then.
type outage struct {
	Options
	mu   sync.Mutex
	told time.Time // zero: there is none
	why  error     // of the last attempt to connect that failed; nil: none has
}

const tellEvery = 30 * time.Second

func (o *outage) goesOn(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		return
	}
	o.why = err
	if time.Since(o.told) < tellEvery {
		return
	}
	o.told = time.Now()
	o.Log.Warn("NATS does not answer; trying again", "url", o.URL, "error", err)
}

func (o *outage) ended() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.told.IsZero() {
		o.Log.Info("connected to NATS again", "url", o.URL)
	}
	o.told, o.why = time.Time{}, nil
}

// cause is why NATS does not answer.
func (o *outage) cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.why == nil {
		return errNotConnected
	}
	return o.why
}

var errNotConnected = errors.New("not connected")

// sayError logs what NATS refuses, and what the client has to drop.
func (o Options) sayError(_ *nats.Conn, sub *nats.Subscription, err error) {
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	o.Log.Warn("NATS reports an error", "url", o.URL, "subject", subject, "error", err)
}

// pingEvery is how often the server is asked for a sign of life; two that do not
// come end the connection.
const pingEvery = 10 * time.Second

func (o Options) natsOptions(out *outage) ([]nats.Option, error) {
	options := []nats.Option{
		nats.Name(o.Name),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // a certificate that was retired may be replaced yet
		nats.ReconnectWait(250 * time.Millisecond),
		nats.PingInterval(pingEvery), // a network that drops everything says nothing else
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { out.goesOn(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { out.goesOn(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { out.ended() }),
		nats.ConnectHandler(func(*nats.Conn) { out.ended() }),
		nats.ErrorHandler(o.sayError), // else nats.go prints to standard error
	}
	if o.InProcess != nil {
		options = append(options, nats.InProcessServer(o.InProcess))
	}
	if o.InboxPrefix != "" {
		options = append(options, nats.CustomInboxPrefix(o.InboxPrefix))
	}
	if o.User != "" {
		options = append(options, nats.UserInfo(o.User, o.Password))
	}
	for _, file := range []string{o.Credentials, o.CAFile, o.CertFile, o.KeyFile} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("nats: %w: %w", err, backup.ErrInvalid)
		}
	}
	if o.Credentials != "" {
		options = append(options, nats.UserCredentials(o.Credentials))
	}
	if o.CAFile != "" {
		options = append(options, nats.RootCAs(o.CAFile))
	}
	if o.CertFile != "" {
		options = append(options, nats.ClientCert(o.CertFile, o.KeyFile))
	}
	return options, nil
}

// Ready returns nil when the server answers now and the queues are this client's. Else its error wraps
// backup.ErrUnavailable, or ErrOtherRepository.
func (c *Conn) Ready() error {
	if c.nc.IsConnected() {
		return c.others.inTheWay()
	}
	return fmt.Errorf("nats %s does not answer: %w: %w", c.opts.URL, c.out.cause(), backup.NATSAway)
}

// Reach waits until the server answers, for at most as long as within. Then, and where the queues are another
// repository's, it returns the error of Ready.
func (c *Conn) Reach(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	look := time.NewTicker(within / 100)
	defer look.Stop()
	for {
		err := c.Ready()
		if err == nil && errors.Is(c.HaveStreams(ctx), ErrOtherRepository) {
			err = c.Ready() // which knows now
		}
		if err == nil || errors.Is(err, ErrOtherRepository) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-look.C:
		}
	}
}

// Close sends what is buffered and disconnects.
func (c *Conn) Close() {
	if c.nc.IsConnected() {
		if c.opts.InProcess != nil && c.opts.Memory {
			c.deleteStreams()
		}
		_ = c.nc.FlushTimeout(closeWait) // what is lost comes again as a new attempt
	}
	c.nc.Close()
}

// closeWait is how long Close takes at most.
const closeWait = 2 * time.Second

// deleteStreams deletes the streams of a server that ends with this process:
// with consumers that somebody asked for messages, its shutdown takes 50 ms.
func (c *Conn) deleteStreams() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	for _, stream := range []string{walkStream, readStream, commitStream} {
		_ = c.js.DeleteStream(ctx, stream) // it is in memory: it ends with the server
	}
}
