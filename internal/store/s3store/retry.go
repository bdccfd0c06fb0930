package s3store

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/loop"
	"github.com/bctl/bctl/internal/store"
)

const (
	firstPause   = 200 * time.Millisecond
	longestPause = 15 * time.Second
)

// do is retry for an operation on an object, whose name it checks.
func (s *Store) do(ctx context.Context, op, name string, attempt func(context.Context, *watchdog) error) error {
	if err := store.CheckName(name); err != nil {
		return s.fail(op, name, nil, err)
	}
	return s.retry(ctx, op, name, attempt)
}

// retry makes attempts until one succeeds, fails permanently, or the time is over.
func (s *Store) retry(ctx context.Context, op, name string, attempt func(context.Context, *watchdog) error) error {
	var (
		started = time.Now()
		made    int
		last    error
	)
	for {
		made++
		if last = s.watched(ctx, attempt); last == nil {
			return nil
		}
		left := s.options.RetryFor - time.Since(started)
		if context.Cause(ctx) != nil || !transient(last) || left <= 0 {
			break
		}
		pause := min(loop.Backoff(made, firstPause, longestPause), left)
		if s.options.OnRetry != nil {
			s.options.OnRetry(Retry{
				Store: s.String(), Op: op, Name: name,
				Attempt: made, Err: describe(last), Kind: kindOf(last), Pause: pause, Remaining: left,
			})
		}
		loop.Pause(ctx, pause)
		if context.Cause(ctx) != nil {
			break
		}
	}
	if cause := context.Cause(ctx); cause != nil {
		if !errors.Is(last, context.Canceled) && !errors.Is(last, context.DeadlineExceeded) {
			cause = fmt.Errorf("%w, after %w", cause, describe(last))
		}
		return s.fail(op, name, nil, cause)
	}
	described := describe(last)
	if made > 1 {
		described = fmt.Errorf("%w (attempt %d, after %s)", described, made, time.Since(started).Round(time.Second/10))
	}
	return s.fail(op, name, kindOf(last), described)
}

func (s *Store) fail(op, name string, kind, err error) error {
	return &store.Error{Store: s.String(), Op: op, Name: name, Kind: kind, Err: err}
}

// final marks an error that no further attempt can change. It wraps its kind.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// errDamaged reports bytes that differ from those sent. Another transfer may succeed.
var errDamaged = errors.New("the checksum is not that of the bytes")

// A damagedError is errDamaged of a download.
type damagedError struct{ checksum string } // of the bytes

func (damagedError) Error() string   { return errDamaged.Error() + ": " + backup.ErrCorrupt.Error() }
func (damagedError) Unwrap() []error { return []error{errDamaged, backup.ErrCorrupt} }

// codes maps S3 error codes whose meaning differs from that of their HTTP status.
var codes = map[string]struct {
	kind      error
	transient bool
}{
	"NoSuchKey":                      {backup.ErrNotFound, false}, // no other 404 means that
	"NoSuchBucket":                   {backup.ErrNoRepository, false},
	"InvalidRange":                   {backup.ErrCorrupt, false},
	"XMinioStorageFull":              {store.ErrFull, true},
	"InsufficientStorage":            {store.ErrFull, true},
	"QuotaExceeded":                  {store.ErrFull, true},
	"XMinioAdminBucketQuotaExceeded": {store.ErrFull, true},
	"RequestTimeout":                 {backup.StoreAway, true},
	"ExpiredToken":                   {fs.ErrPermission, true}, // the next attempt fetches another
	"ExpiredTokenException":          {fs.ErrPermission, true},
	"BadDigest":                      {backup.StoreAway, true},
	"InvalidDigest":                  {backup.StoreAway, true},
	"XAmzContentChecksumMismatch":    {backup.StoreAway, true},
	"XAmzContentSHA256Mismatch":      {backup.StoreAway, true},
	"IncompleteBody":                 {backup.StoreAway, true},
	"InternalError":                  {backup.StoreAway, true},
	"ConditionalRequestConflict":     {backup.StoreAway, true},
	"OperationAborted":               {backup.StoreAway, true},
	"InvalidAccessKeyId":             {fs.ErrPermission, false},
	"XAdminUserNotFound":             {fs.ErrPermission, false}, // versitygw's InvalidAccessKeyId
	"SignatureDoesNotMatch":          {fs.ErrPermission, false},
	codeClock:                        {fs.ErrPermission, false},
}

// codeClock is the answer of S3 to a request whose time differs too much from its own.
const codeClock = "RequestTimeTooSkewed"

// transient reports whether another attempt may succeed.
func transient(err error) bool {
	if _, ok := errors.AsType[final](err); ok {
		return false
	}
	response, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok {
		return !misconfigured(err) // a connection that failed, stalled or broke, or damage
	}
	if meaning, known := codes[response.Code]; known {
		return meaning.transient
	}
	switch status := response.StatusCode; status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests, 499:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	default:
		return status >= 500
	}
}

// kindOf returns the error of package store that err represents; nil if err wraps it.
func kindOf(err error) error {
	if _, ok := errors.AsType[final](err); ok || errors.Is(err, backup.ErrCorrupt) {
		return nil
	}
	response, ok := errors.AsType[minio.ErrorResponse](err)
	if !ok {
		if misconfigured(err) {
			return backup.ErrInvalid
		}
		return backup.StoreAway
	}
	if meaning, known := codes[response.Code]; known {
		return meaning.kind
	}
	switch status := response.StatusCode; {
	case status == http.StatusInsufficientStorage:
		return store.ErrFull
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return fs.ErrPermission
	case transient(err):
		return backup.StoreAway
	}
	return backup.ErrInvalid
}

// misconfigured reports whether the connection failed for a reason that waiting does not resolve.
func misconfigured(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return true
	}
	// The server requires another client certificate. The type of a TLS alert is not exported.
	remote, ok := errors.AsType[*net.OpError](err)
	return ok && remote.Op == "remote error" && strings.Contains(remote.Error(), "certificate")
}

// describe makes an error of the SDK readable: the answer of S3, or the error of the connection
// without the URL.
func describe(err error) error {
	if response, ok := errors.AsType[minio.ErrorResponse](err); ok {
		text := response.Code
		if message := strings.TrimSpace(response.Error()); message != "" && message != text {
			text += ": " + message
		}
		if response.StatusCode != 0 {
			text += fmt.Sprintf(" (HTTP %d)", response.StatusCode)
		}
		if response.Code == codeClock {
			text += "; set the clock of this machine, or that of the store: they differ by more than the store accepts"
		}
		return answered{text, err}
	}
	if in, ok := errors.AsType[*url.Error](err); ok {
		return in.Err
	}
	return err
}

// answered is an error of S3 with a text of our own.
type answered struct {
	text string
	err  error
}

func (a answered) Error() string { return a.text }
func (a answered) Unwrap() error { return a.err }
