package fleet

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"
)

// A FaultProxy forwards requests to an S3 server, and does to them what is set.
type FaultProxy struct {
	URL string
	// While Fail is set, one of five requests that write succeeds. Two are lost before the server
	// has them, and two are carried out. One of each two is answered with an error, and for the
	// other the connection is closed.
	Fail          atomic.Bool
	Lost, Applied atomic.Int64 // how many failed
	// While Refuse is set, every request is answered with 503. While Deny is set, every request is
	// answered with 403. While Full is set, requests that write are answered with 507.
	Refuse, Deny, Full atomic.Bool
	Refused            atomic.Int64 // how many were
	delay              atomic.Int64

	writes  atomic.Int64
	forward http.Handler
}

// Slow delays every request; 0 ends that.
func (p *FaultProxy) Slow(delay time.Duration) { p.delay.Store(int64(delay)) }

// Heal ends all faults.
func (p *FaultProxy) Heal() {
	p.Slow(0)
	for _, fault := range []*atomic.Bool{&p.Fail, &p.Refuse, &p.Deny, &p.Full} {
		fault.Store(false)
	}
}

func newFaultProxy(t testing.TB, upstream string) *FaultProxy {
	t.Helper()
	to, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	p := &FaultProxy{forward: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // it is signed
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

// ServeHTTP answers one request.
func (p *FaultProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if delay := time.Duration(p.delay.Load()); delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case p.Refuse.Load():
		p.refuse(w, http.StatusServiceUnavailable)
	case p.Deny.Load():
		p.refuse(w, http.StatusForbidden)
	case r.Method == http.MethodPut && p.Full.Load():
		p.refuse(w, http.StatusInsufficientStorage)
	case r.Method == http.MethodPut && p.Fail.Load():
		p.failMost(w, r)
	default:
		p.forward.ServeHTTP(w, r)
	}
}

func (p *FaultProxy) refuse(w http.ResponseWriter, status int) {
	p.Refused.Add(1)
	w.WriteHeader(status)
}

func (p *FaultProxy) failMost(w http.ResponseWriter, r *http.Request) {
	n := p.writes.Add(1) % 5
	switch n {
	case 0:
		p.forward.ServeHTTP(w, r)
		return
	case 1, 2:
		p.Lost.Add(1)
		_, _ = io.CopyN(io.Discard, r.Body, 1000) // it was on its way
	case 3, 4:
		p.Applied.Add(1)
		p.forward.ServeHTTP(httptest.NewRecorder(), r)
	}
	if n%2 == 0 {
		panic(http.ErrAbortHandler) // the connection ends
	}
	w.WriteHeader(http.StatusServiceUnavailable)
}
