package fleet

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
)

// A FaultProxy forwards requests to a server. While Fail is set only every
// fifth request that writes succeeds. Of the others, two are lost before the
// server has them, and two are carried out; of either, one ends with an error, and one with
// the connection.
type FaultProxy struct {
	URL           string
	Lost, Applied atomic.Int64 // how many failed
	Fail          atomic.Bool

	writes atomic.Int64
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
		if r.Method != http.MethodPut || !p.Fail.Load() {
			forward.ServeHTTP(w, r)
			return
		}
		n := p.writes.Add(1) % 5
		switch n {
		case 0:
			forward.ServeHTTP(w, r)
			return
		case 1, 2:
			p.Lost.Add(1)
			_, _ = io.CopyN(io.Discard, r.Body, 1000) // it was on its way
		case 3, 4:
			p.Applied.Add(1)
			forward.ServeHTTP(httptest.NewRecorder(), r)
		}
		if n%2 == 0 {
			panic(http.ErrAbortHandler) // the connection ends
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	p.URL = server.URL
	return p
}
