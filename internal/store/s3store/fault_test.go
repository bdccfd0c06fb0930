package s3store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv"
)

const object = "packs/one/object"

func pack() []byte { return bytes.Repeat([]byte("0123456789abcdef"), 100_000) }

func throughProxy(t testing.TB, server *testenv.S3Server) (*proxy, Options) {
	t.Helper()
	p := newProxy(t, server.Endpoint)
	o := optionsFor(server)
	o.Endpoint = p.URL
	return p, o
}

func times(n int, s step) (steps []step) {
	for range n {
		steps = append(steps, s)
	}
	return steps
}

// Both faults of a durable write, and others, in one Put or PutNew. The call succeeds, and the
// stored object is the one that was put.
func TestWritesSurviveFaults(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		slowDown := answer(http.StatusServiceUnavailable, "SlowDown")
		for name, steps := range map[string][]step{
			"lost":               {{"PUT", lost}},
			"applied":            {{"PUT", applied}},
			"applied then error": {{"PUT", appliedThenError}},
			"slow down":          times(3, step{"PUT", slowDown}),
			"stalled":            {{"PUT", stall}},
			"bit flipped":        {{"PUT", flipRequest}},
			"conflict":           {{"PUT", answer(http.StatusConflict, "ConditionalRequestConflict")}},
			"look lost":          {{"HEAD", lost}, {"PUT", applied}, {"HEAD", lost}},
			"all of them":        {{"PUT", lost}, {"PUT", flipRequest}, {"PUT", stall}, {"PUT", applied}},
		} {
			for method, put := range map[string]func(*Store, string, []byte) error{
				"Put":    func(s *Store, name string, data []byte) error { return s.Put(t.Context(), name, data) },
				"PutNew": func(s *Store, name string, data []byte) error { return s.PutNew(t.Context(), name, data) },
			} {
				t.Run(method+"/"+name, func(t *testing.T) {
					t.Parallel()
					p, o := throughProxy(t, server)
					o.StallTimeout, o.ResponseTimeout = 500*time.Millisecond, 500*time.Millisecond
					o.Prefix = strings.ReplaceAll(method+"/"+name, " ", "-")
					heard := newCounter()
					o.OnRetry = heard.observe
					s := open(t, o)
					p.next(slices.Clone(steps)...) // the request consumes them
					if err := put(s, object, pack()); err != nil {
						t.Fatal(err)
					}
					if heard.retries.Load() == 0 && name != "look lost" {
						t.Error("nothing failed: the proxy does not do its work")
					}
					p.next()
					if got, err := s.Get(t.Context(), object, 1<<30); err != nil || !bytes.Equal(got, pack()) {
						t.Errorf("stored: %d bytes, %v", len(got), err)
					}
				})
			}
		}
	})
}

// The server itself refuses a damaged body, which does not become an object.
func TestADamagedBodyIsRefused(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		p, o := throughProxy(t, server)
		o.RetryFor = -1
		s := open(t, o)
		p.next(step{"PUT", flipRequest})
		err := s.Put(t.Context(), object, pack())
		if !errors.Is(err, backup.ErrUnavailable) || !strings.Contains(err.Error(), "HTTP 400") {
			t.Errorf("got %v", err)
		}
		if _, err := s.Stat(t.Context(), object); !errors.Is(err, backup.ErrNotFound) {
			t.Errorf("the object: %v", err)
		}
	})
}

// After a lost answer, an object of another writer is still recognized as such.
func TestPutNewKnowsItsOwnObject(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		p, o := throughProxy(t, server)
		s := open(t, o)
		p.next(step{"PUT", func(p *proxy, w http.ResponseWriter, r *http.Request) {
			// A rival with the same bytes comes first.
			if err := open(t, optionsFor(server)).PutNew(t.Context(), object, pack()); err != nil {
				t.Error(err)
			}
			lost(p, w, r)
		}})
		if err := s.PutNew(t.Context(), object, pack()); !errors.Is(err, backup.ErrExists) {
			t.Errorf("got %v", err)
		}
	})
}

// Names are never put twice. A second Put gets an error, and changes nothing.
func TestPutDoesNotOverwrite(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		s := open(t, optionsFor(server))
		if err := s.Put(t.Context(), object, []byte("first")); err != nil {
			t.Fatal(err)
		}
		for _, other := range []string{"other", "longer than first"} {
			if err := s.Put(t.Context(), object, []byte(other)); !errors.Is(err, backup.ErrExists) {
				t.Errorf("put %q: %v", other, err)
			}
		}
		if got, err := s.Get(t.Context(), object, 10); err != nil || string(got) != "first" {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestReadsSurviveFaults(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		p, o := throughProxy(t, server)
		o.StallTimeout, o.ResponseTimeout = 500*time.Millisecond, 500*time.Millisecond
		s := open(t, o)
		if err := s.Put(t.Context(), object, pack()); err != nil {
			t.Fatal(err)
		}
		for name, fault := range map[string]func(*proxy, http.ResponseWriter, *http.Request){
			"lost": lost, "cut": cut, "cut and stalled": cutAndStall, "stalled": stall,
			"slow down": answer(http.StatusServiceUnavailable, "SlowDown"),
		} {
			t.Run(name, func(t *testing.T) {
				p.next(step{"GET", fault})
				got, err := s.GetRange(t.Context(), []byte("kept"), object, 1000, 1_000_000)
				if err != nil || !bytes.Equal(got[4:], pack()[1000:1_001_000]) || string(got[:4]) != "kept" {
					t.Errorf("range: %d bytes, %v", len(got), err)
				}
				p.next(step{"GET", fault})
				if got, err := s.Get(t.Context(), object, 1<<30); err != nil || !bytes.Equal(got, pack()) {
					t.Errorf("whole: %d bytes, %v", len(got), err)
				}
				p.next(step{"GET", fault})
				objects := 0
				for _, err := range s.List(t.Context(), "packs/") {
					if objects++; err != nil {
						t.Errorf("list: %v", err)
					}
				}
				if objects != 1 || p.count("GET") < 2 {
					t.Errorf("list: %d objects, %d requests", objects, p.count("GET"))
				}
			})
		}
		p.next(step{"GET", flipResponse})
		if got, err := s.Get(t.Context(), object, 1<<30); err != nil || !bytes.Equal(got, pack()) || p.count("GET") != 2 {
			t.Errorf("a flipped bit: %d bytes, %v, %d requests", len(got), err, p.count("GET"))
		}
		// A bit that is flipped again is flipped at the server: nobody waits for that to end.
		p.next(step{"GET", flipResponse}, step{"GET", flipResponse})
		if _, err := s.Get(t.Context(), object, 1<<30); !errors.Is(err, backup.ErrCorrupt) || errors.Is(err, backup.ErrUnavailable) || p.count("GET") != 2 {
			t.Errorf("damage at the server: %v, %d requests", err, p.count("GET"))
		}
	})
}

// The requests per operation: no check before, none after.
func TestRequestsOfAnOperation(t *testing.T) {
	t.Parallel()
	p, o := throughProxy(t, testenv.VersityGW(t))
	s := open(t, o)
	for _, c := range []struct {
		name string
		do   func() error
		want map[string]int
	}{
		{"Put", func() error { return s.Put(t.Context(), object, pack()) }, map[string]int{"PUT": 1}},
		{"GetRange", func() error { _, err := s.GetRange(t.Context(), nil, object, -10, 10); return err }, map[string]int{"GET": 1}},
		{"Get", func() error { _, err := s.Get(t.Context(), object, 1<<30); return err }, map[string]int{"GET": 1}},
		{"Stat", func() error { _, err := s.Stat(t.Context(), object); return err }, map[string]int{"HEAD": 1}},
		{"Delete", func() error { return s.Delete(t.Context(), object) }, map[string]int{"DELETE": 1}},
		{"Delete of 1000", func() error { return s.Delete(t.Context(), numbered(1000)...) }, map[string]int{"POST": 1}},
		{"Delete of 2001", func() error { return s.Delete(t.Context(), numbered(2001)...) }, map[string]int{"POST": 2, "DELETE": 1}},
		{"PutNew", func() error { return s.PutNew(t.Context(), "new", pack()) }, map[string]int{"HEAD": 2, "PUT": 1}},
	} {
		p.next()
		if err := c.do(); err != nil {
			t.Fatal(err)
		}
		for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "POST"} {
			if got := p.count(method); got != c.want[method] {
				t.Errorf("%s: %d %s, want %d", c.name, got, method, c.want[method])
			}
		}
	}
}

func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("packs/one/%d", i)
	}
	return names
}

// A server that does not check CRC64NVME gets Content-MD5.
func TestServersWithoutChecksums(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*proxy, http.ResponseWriter, *http.Request){
		"ignores":    forgetChecksum,
		"refuses":    answer(http.StatusNotImplemented, "NotImplemented"),
		"objects to": answerWith(http.StatusBadRequest, "InvalidArgument", "Unsupported header x-amz-checksum-crc64nvme"),
	} {
		t.Run(name, func(t *testing.T) {
			p, o := throughProxy(t, testenv.VersityGW(t))
			s := open(t, o)
			p.next(step{"PUT", fault})
			if err := s.Put(t.Context(), object, pack()); err != nil {
				t.Fatal(err)
			}
			if !s.noChecksum.Load() {
				t.Fatal("still believes in checksums")
			}
			// From now on MD5 detects the damage.
			p.next(step{"PUT", flipRequest})
			if err := s.Put(t.Context(), "packs/one/second", pack()); err != nil {
				t.Fatal(err)
			}
			if p.count("PUT") != 2 {
				t.Errorf("%d PUTs", p.count("PUT"))
			}
			if got, err := s.Get(t.Context(), "packs/one/second", 1<<30); err != nil || !bytes.Equal(got, pack()) {
				t.Errorf("stored: %d bytes, %v", len(got), err)
			}
		})
	}
}

// An unchecked object that was damaged in transit is detected at once.
func TestUncheckedDamageIsFound(t *testing.T) {
	t.Parallel()
	server := testenv.VersityGW(t)
	p, o := throughProxy(t, server)
	s := open(t, o)
	p.next(step{"PUT", func(p *proxy, w http.ResponseWriter, r *http.Request) {
		damaged := pack()
		damaged[7] ^= 1
		if err := open(t, optionsFor(server)).Put(t.Context(), object, damaged); err != nil {
			t.Error(err)
		}
		_, _ = w.Write(nil) // 200, and no checksum
	}})
	if err := s.Put(t.Context(), object, pack()); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("got %v", err)
	}
}

// A server that does not support If-None-Match on PUT is used without it.
func TestServersWithoutConditions(t *testing.T) {
	t.Parallel()
	p, o := throughProxy(t, testenv.VersityGW(t))
	s := open(t, o)
	p.next(times(2, step{"PUT", answer(http.StatusNotImplemented, "NotImplemented")})...)
	if err := s.Put(t.Context(), object, pack()); err != nil {
		t.Fatal(err)
	}
	if !s.noConditional.Load() {
		t.Fatal("still believes in conditions")
	}
	if err := s.PutNew(t.Context(), object, pack()); !errors.Is(err, backup.ErrExists) {
		t.Errorf("PutNew of a taken name: %v", err)
	}
	if err := s.PutNew(t.Context(), "packs/one/new", pack()); err != nil {
		t.Error(err)
	}
}

// A final error is returned at once. After any other, the operation is retried until the time is
// over.
func TestAnswers(t *testing.T) {
	t.Parallel()
	p, o := throughProxy(t, testenv.VersityGW(t))
	o.RetryFor = time.Second
	for _, c := range []struct {
		status  int
		code    string
		kind    error
		retried bool
	}{
		{403, "AccessDenied", fs.ErrPermission, false},
		{403, "InvalidAccessKeyId", fs.ErrPermission, false},
		{403, "SignatureDoesNotMatch", fs.ErrPermission, false},
		{403, "RequestTimeTooSkewed", fs.ErrPermission, false},
		{401, "Unauthorized", fs.ErrPermission, false},
		{404, "NoSuchBucket", backup.ErrNoRepository, false},
		{400, "InvalidBucketName", backup.ErrInvalid, false},
		{400, "AuthorizationHeaderMalformed", backup.ErrInvalid, false},
		{301, "PermanentRedirect", backup.ErrInvalid, false},
		{400, "RequestTimeout", backup.ErrUnavailable, true},
		{400, "BadDigest", backup.ErrUnavailable, true},
		{408, "RequestTimeout", backup.ErrUnavailable, true},
		{409, "OperationAborted", backup.ErrUnavailable, true},
		{429, "TooManyRequests", backup.ErrUnavailable, true},
		{500, "InternalError", backup.ErrUnavailable, true},
		{502, "BadGateway", backup.ErrUnavailable, true},
		{503, "SlowDown", backup.ErrUnavailable, true},
		{503, "XMinioServerNotInitialized", backup.ErrUnavailable, true},
		{504, "GatewayTimeout", backup.ErrUnavailable, true},
		{507, "XMinioStorageFull", store.ErrFull, true},
		{507, "InsufficientStorage", store.ErrFull, true},
		{403, "QuotaExceeded", store.ErrFull, true},
	} {
		t.Run(c.code, func(t *testing.T) {
			s := open(t, o)
			p.next(times(20, step{"PUT", answer(c.status, c.code)})...)
			err := s.Put(t.Context(), object, pack())
			if !errors.Is(err, c.kind) {
				t.Errorf("got %v, want %v", err, c.kind)
			}
			if retried := p.count("PUT") > 1; retried != c.retried {
				t.Errorf("%d PUTs", p.count("PUT"))
			}
			for _, want := range []string{p.URL, o.Bucket, object, c.code} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
		})
	}
}

// The server is killed and restarts while a Put retries.
func TestPutOutlivesARestart(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, server *testenv.S3Server) {
		o := optionsFor(server)
		o.RetryFor = time.Minute
		heard := newCounter()
		o.OnRetry = heard.observe
		s := open(t, o)
		server.Kill()
		done := make(chan error, 1)
		go func() { done <- s.Put(t.Context(), object, pack()) }()
		r := <-heard.first
		if r.Store != s.String() || r.Op != "put" || r.Name != object || r.Attempt != 1 || r.Err == nil ||
			r.Pause <= 0 || r.Remaining <= 50*time.Second || r.Remaining > time.Minute {
			t.Errorf("heard %+v", r)
		}
		server.Restart()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got, err := s.Get(t.Context(), object, 1<<30); err != nil || !bytes.Equal(got, pack()) {
			t.Errorf("stored: %d bytes, %v", len(got), err)
		}
	})
}

// An operation on a server that does not answer fails after RetryFor, with an error that names the
// server and the cause.
func TestGivingUp(t *testing.T) {
	t.Parallel()
	server := testenv.VersityGW(t)
	o := optionsFor(server)
	o.RetryFor = 500 * time.Millisecond
	s := open(t, o)
	server.Kill()
	err := s.Put(t.Context(), object, pack())
	if !errors.Is(err, backup.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{o.Endpoint, "connection refused", "attempt", object} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
}

// A context that is canceled in the middle ends the operation, and the caller may reuse the buffer.
func TestCancelInTheMiddle(t *testing.T) {
	t.Parallel()
	p, o := throughProxy(t, testenv.VersityGW(t))
	for name, fault := range map[string]func(*proxy, http.ResponseWriter, *http.Request){
		"while it stalls": stall,
		"while it pauses": answer(http.StatusServiceUnavailable, "SlowDown"),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o.OnRetry = func(Retry) { cancel() }
			s := open(t, o)
			p.next(times(5, step{"PUT", func(p *proxy, w http.ResponseWriter, r *http.Request) {
				if name == "while it stalls" {
					cancel()
				}
				fault(p, w, r)
			}})...)
			data := bytes.Repeat([]byte("x"), 32<<20)
			err := s.Put(ctx, object, data)
			clear(data) // the race detector reports a goroutine that still reads it
			if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), object) {
				t.Errorf("got %v", err)
			}
		})
	}
}
