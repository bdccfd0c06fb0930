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

// Options configure a connection to NATS.
type Options struct {
	URL         string // comma-separated for a cluster
	Name        string // of this client, for the server's monitoring
	Credentials string // file with a JWT and its seed; empty: none
	User        string
	Password    string
	CAFile      string
	CertFile    string
	KeyFile     string
	// Prefix of the subjects of replies, where permissions require one; empty: _INBOX.
	InboxPrefix string

	// Repository owns the queues and messages of this client; zero: ownership is not checked.
	Repository backup.RepositoryID

	Replicas int  // of the streams: 1, or 3 on a cluster
	Memory   bool // keep streams in the server's memory
	// WorkAge is how long streams keep messages to workers; 0: until they are taken. It is at least
	// as long as the lease of the work in such a message: after that, another attempt has replaced
	// it or its snapshot has ended.
	WorkAge time.Duration

	// InProcess connects to a server in this process instead of URL.
	InProcess nats.InProcessConnProvider
	Log       *slog.Logger
	// Moved, if not nil, is called whenever a consumer requests messages or checks whether it may.
	// A consumer does so every few seconds, also while NATS is unavailable.
	Moved func()
	// MayTake, if not nil, is called before each request for a message. While it returns an error,
	// no message is requested.
	MayTake func(context.Context) error
	// Dropped, if not nil, is called for each message that is dropped because it cannot be decoded.
	Dropped func()
}

// A Conn is a connection to NATS. It reconnects without limit. All methods may be called
// concurrently.
type Conn struct {
	nc   *nats.Conn
	js   jetstream.JetStream
	opts Options
	log  *slog.Logger
	out  *outage

	others  others
	storing storing

	ackWait time.Duration // of all queues, in tests; 0: each queue's

	instance string // of this process: see presence.go
	steady   steady
}

// Connect connects to NATS. If the server does not answer, Connect returns without error and the
// Conn keeps trying: a service may start before NATS does.
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
	o.URL = redacted(o.URL) // used only in messages from here on
	out := &outage{Options: o}
	options, err := o.natsOptions(out)
	if err != nil {
		return nil, err
	}
	if slices.Contains(strings.Split(o.URL, ","), notURL) {
		// The parser's error would repeat it, with its password.
		return nil, fmt.Errorf("nats %s: %w", o.URL, backup.ErrInvalid)
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
	return &Conn{nc: nc, js: js, opts: o, log: o.Log, out: out, instance: rand.Text(), steady: steady{wait: steadyFor}}, nil
}

const notURL = "(not a URL)"

// redacted returns a comma-separated list of URLs without their passwords.
func redacted(urls string) string {
	list := strings.Split(urls, ",")
	for i, text := range list {
		text = strings.TrimSpace(text)
		const scheme = "nats://" // NATS adds it where there is none
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

// redactedURL returns the URL without its password; a user without a password is a token.
func redactedURL(u *url.URL) string {
	if _, ok := u.User.Password(); u.User != nil && !ok {
		u.User = url.User("xxxxx")
	}
	return u.Redacted()
}

// An outage is a period in which NATS does not answer. It is logged at its beginning, at its end,
// and every logEvery.
type outage struct {
	Options
	mu     sync.Mutex
	logged time.Time // zero: there is no outage
	why    error     // of the last failed attempt to connect; nil: none has failed
	// refused: it is logged that the server refuses this client, which is news once.
	refused bool
	// denied is the server's refusal to let this client use its queue; nil: it does.
	denied error
}

const logEvery = 30 * time.Second

func (o *outage) failed(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		return
	}
	news := refuses(err) && !o.refused
	o.why = err
	if time.Since(o.logged) < logEvery && !news {
		return
	}
	o.logged = time.Now()
	if refuses(err) {
		o.refused = true
		err = fmt.Errorf("it refuses this client (%s): %w", o.question(), err)
	}
	o.Log.Warn("connecting to NATS failed, will retry", "url", o.URL, "error", err)
}

// disconnected records the end of a connection. If the server has said before why it ends it, that
// remains the cause.
func (o *outage) disconnected(err error) {
	if errors.Is(o.cause(), errNotConnected) {
		o.failed(err)
	}
}

func (o *outage) ended() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.logged.IsZero() {
		o.Log.Info("reconnected to NATS", "url", o.URL)
	}
	o.logged, o.why, o.refused = time.Time{}, nil, false
}

// cause returns why NATS does not answer.
func (o *outage) cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.why == nil {
		return errNotConnected
	}
	return o.why
}

var errNotConnected = errors.New("not connected")

// consumed records that the client may use its queue.
func (o *outage) consumed() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.denied = nil
}

// denial returns why the client must not use its queue.
func (o *outage) denial() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.denied
}

// logError logs the server's refusals, and messages that the client has to drop. If the server
// refuses a client that reconnects, nats.go reports that only here, at each attempt.
func (o *outage) logError(nc *nats.Conn, sub *nats.Subscription, err error) {
	permission := errors.Is(err, nats.ErrPermissionViolation)
	if refuses(err) || sub == nil && !permission && !nc.IsConnected() {
		o.failed(err)
		return
	}
	if permission && strings.Contains(err.Error(), jsAPI+"CONSUMER.") {
		o.mu.Lock()
		o.denied = err
		o.mu.Unlock()
	}
	subject := ""
	if sub != nil {
		subject = sub.Subject
	}
	o.Log.Warn("NATS reports an error", "url", o.URL, "subject", subject, "error", err)
}

// pingEvery is the interval between pings to the server. Two unanswered pings end the connection.
const pingEvery = 10 * time.Second

func (o Options) natsOptions(out *outage) ([]nats.Option, error) {
	options := []nats.Option{
		nats.Name(o.Name),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // a retired certificate may still be replaced
		nats.ReconnectWait(250 * time.Millisecond),
		nats.PingInterval(pingEvery), // the only way to notice a network that drops everything
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { out.disconnected(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { out.failed(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { out.ended() }),
		nats.ConnectHandler(func(*nats.Conn) { out.ended() }),
		nats.ErrorHandler(out.logError), // by default nats.go prints to standard error
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

// Ready returns nil if the server is connected and the queues are this client's. Otherwise its
// error wraps backup.ErrUnavailable, ErrOtherRepository or ErrDenied.
func (c *Conn) Ready() error {
	if c.nc.IsConnected() {
		if err := c.out.denial(); err != nil {
			return fmt.Errorf("nats %s does not let this client take work (is worker.site that of its certificate?): %w: %w", c.opts.URL, err, ErrDenied)
		}
		return c.others.queuesRefused()
	}
	cause := c.out.cause()
	if refuses(cause) {
		return fmt.Errorf("nats %s refuses this client (%s): %w: %w", c.opts.URL, c.opts.question(), cause, backup.NATSAway)
	}
	return fmt.Errorf("nats %s does not answer: %w: %w", c.opts.URL, cause, backup.NATSAway)
}

// refusals are how servers refuse credentials. nats.go has no one error for them.
var refusals = []string{"authorization violation", "authentication expired", "authentication revoked"}

// refuses reports whether the server has refused the credentials.
func refuses(cause error) bool {
	text := strings.ToLower(cause.Error())
	return slices.ContainsFunc(refusals, func(refusal string) bool { return strings.Contains(text, refusal) })
}

// question asks about the settings by which the server knows this client.
func (o Options) question() string {
	switch {
	case o.Credentials != "":
		return "is nats.credentials_file still valid?"
	case o.User != "":
		return "are nats.user and its password those of the server?"
	case o.CertFile != "":
		return "does the server know the user of nats.cert_file?"
	}
	return "does it require one of nats.user, nats.cert_file and nats.credentials_file?"
}

// Answers is Ready for a server that may hang: it also waits for an answer, until ctx is done or
// its deadline has passed. ctx must have one.
func (c *Conn) Answers(ctx context.Context) error {
	if err := c.Ready(); err != nil {
		return err
	}
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("nats %s does not answer: %w: %w", c.opts.URL, err, backup.NATSAway)
	}
	return nil
}

// Reach waits until the server answers, at most for the duration within. When the time is over, or
// if the queues belong to another repository, it returns the error of Ready.
func (c *Conn) Reach(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	look := time.NewTicker(within / 100)
	defer look.Stop()
	for {
		err := c.Ready()
		if err == nil && errors.Is(c.HaveStreams(ctx), ErrOtherRepository) {
			err = c.Ready() // the ownership is known now
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
		_ = c.nc.FlushTimeout(closeWait) // lost messages come again as a new attempt
	}
	c.nc.Close()
}

// closeWait is the most time that Close takes.
const closeWait = 2 * time.Second

// deleteStreams deletes the streams of a server that ends with this process: the shutdown of a
// server takes 50 ms if its consumers have waiting requests.
func (c *Conn) deleteStreams() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	for _, stream := range []string{walkStream, readStream, commitStream} {
		_ = c.js.DeleteStream(ctx, stream) // it is in memory and ends with the server
	}
}
