package fleet

import (
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
)

// A FaultProxy forwards requests to a server, and lets some of those that
// write fail: before the server has them (lost), or after it has carried them
// out (applied, then an error).
type FaultProxy struct {
	URL           string
	Lost, Applied atomic.Int64 // how many failed

	percent atomic.Int64
}

func newFaultProxy(t testing.TB, upstream string) *FaultProxy {
	t.Helper()
	to, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	p := &FaultProxy{}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host // it is signed
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut || rand.Int64N(100) >= p.percent.Load() {
			forward.ServeHTTP(w, r)
			return
		}
		if rand.IntN(2) == 0 {
			p.Lost.Add(1)
			_, _ = io.CopyN(io.Discard, r.Body, 1000) // it was on its way when the connection broke
		} else {
			p.Applied.Add(1)
			forward.ServeHTTP(httptest.NewRecorder(), r)
		}
		if rand.IntN(2) == 0 {
			panic(http.ErrAbortHandler) // the connection ends
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}

// Fail lets so many of a hundred writes fail from now on.
func (p *FaultProxy) Fail(percent int) { p.percent.Store(int64(percent)) }
