package s3store

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// An Answer is the server's answer to a request without credentials.
type Answer struct {
	Server string // the Server header
	TLS    *tls.ConnectionState
	// Date is the server's clock, in whole seconds; zero if the server does not report it.
	Date, Sent, Received time.Time
}

// Reach sends requests without credentials; any answer shows that the server can be reached. It
// sends two, because the second gives the server's clock without the time to connect. The error
// wraps backup.ErrUnavailable, or backup.ErrInvalid if a retry cannot succeed.
func (s *Store) Reach(ctx context.Context) (Answer, error) {
	var a Answer
	for range 2 {
		request, err := http.NewRequestWithContext(ctx, http.MethodHead, s.options.Endpoint+"/", http.NoBody)
		if err != nil {
			return a, s.fail("reach", "", backup.ErrInvalid, err)
		}
		a.Sent = time.Now()
		response, err := s.transport.RoundTrip(request)
		a.Received = time.Now()
		if err != nil {
			return a, s.fail("reach", "", kindOf(err), describe(err))
		}
		_ = response.Body.Close() // HEAD has none
		a.Server, a.TLS = response.Header.Get("Server"), response.TLS
		a.Date, _ = http.ParseTime(response.Header.Get("Date")) // zero if there is none
	}
	return a, nil
}

// A Promise is the server's reaction to a request that it should refuse.
type Promise string

// The reactions.
const (
	Kept    Promise = "kept"    // it refuses the request
	Broken  Promise = "broken"  // it carries out the request
	Unknown Promise = "unknown" // it does not support the header: a Store works without it
)

// Overwrites puts an existing object once more, with If-None-Match as a Store does.
func (s *Store) Overwrites(ctx context.Context, name string, data []byte) (Promise, error) {
	return s.attempt(ctx, newPutRequest(name, data, ""), taken, "if-none-match")
}

// Damages puts an object whose bytes do not match its checksum. If the result is Broken, the object
// exists.
func (s *Store) Damages(ctx context.Context, name string, data []byte) (Promise, error) {
	put := newPutRequest(name, data, "")
	put.checksum = newPutRequest(name, append([]byte("x"), data...), "").checksum
	return s.attempt(ctx, put, func(err error) bool {
		response, ok := errors.AsType[minio.ErrorResponse](err)
		return ok && response.StatusCode == http.StatusBadRequest && !refuses(err, "checksum")
	}, "checksum")
}

// attempt makes one PUT that the server should refuse.
func (s *Store) attempt(ctx context.Context, put *putRequest, refused func(error) bool, header string) (Promise, error) {
	if err := store.CheckName(put.name); err != nil {
		return Unknown, s.fail("put", put.name, nil, err)
	}
	err := s.watched(ctx, func(ctx context.Context, w *watchdog) error {
		_, err := s.sendOnce(ctx, w, put, true, true)
		return err
	})
	switch {
	case err == nil:
		return Broken, nil
	case refused(err):
		return Kept, nil
	case refuses(err, header):
		return Unknown, nil
	}
	return Unknown, s.fail("put", put.name, kindOf(err), describe(err))
}

// A Refusal is the reason why a store refuses a request.
type Refusal struct {
	Reason string
	Known  bool // the store knows the credentials, but they lack the permission
}

// Refused returns the reason why a store refuses these credentials. ok is false if err is another
// error.
func Refused(err error) (r Refusal, ok bool) {
	response, is := errors.AsType[minio.ErrorResponse](err)
	if !is || !errors.Is(err, fs.ErrPermission) {
		return r, false
	}
	switch response.Code {
	case "InvalidAccessKeyId", "XAdminUserNotFound":
		return Refusal{Reason: "the store does not know the access key"}, true
	case "SignatureDoesNotMatch":
		return Refusal{Reason: "the secret key is not that of the access key"}, true
	case codeClock:
		return Refusal{Reason: "the store refuses requests of this machine's clock"}, true
	case "ExpiredToken", "ExpiredTokenException":
		return Refusal{Reason: "the session token has expired"}, true
	}
	return Refusal{"the store does not allow it (" + response.Code + ")", true}, true
}
