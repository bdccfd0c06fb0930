package s3store

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/minio/minio-go/v7"
)

var minioPut = minio.PutObjectOptions{DisableContentSha256: true}

// A proxy is in front of a real server, and damages requests and answers according to its steps.
type proxy struct {
	*httptest.Server
	upstream string // host:port

	mu       sync.Mutex
	script   []step
	requests map[string]int // by method
	done     chan struct{}  // closed when the test ends
}

// A step damages one request with the method. Other requests pass.
type step struct {
	method string
	fault  func(p *proxy, w http.ResponseWriter, r *http.Request)
}

func newProxy(t testing.TB, upstream string) *proxy {
	p := &proxy{upstream: upstream, requests: map[string]int{}, done: make(chan struct{})}
	p.Server = httptest.NewServer(p)
	t.Cleanup(func() {
		close(p.done)
		p.Close()
	})
	return p
}

// next sets the steps for the next requests.
func (p *proxy) next(steps ...step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script, p.requests = steps, map[string]int{}
}

func (p *proxy) count(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[method]
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.requests[r.Method]++
	fault := (*proxy).pass
	if i := slices.IndexFunc(p.script, func(s step) bool { return s.method == r.Method }); i >= 0 {
		fault = p.script[i].fault
		p.script = slices.Delete(p.script, i, i+1)
	}
	p.mu.Unlock()
	fault(p, w, r)
}

// forward sends the request to the real server. It keeps the Host, because it is signed.
func (p *proxy) forward(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", p.upstream, ""
	return http.DefaultTransport.RoundTrip(out)
}

func (p *proxy) pass(w http.ResponseWriter, r *http.Request) { p.passChanged(w, r, nil) }

func (p *proxy) passChanged(w http.ResponseWriter, r *http.Request, change func(http.Header)) {
	response, err := p.forward(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer response.Body.Close()
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	if change != nil {
		change(w.Header())
	}
	w.WriteHeader(response.StatusCode)
	_, _ = io.Copy(w, response.Body)
}

// lost: the request does not arrive, and the connection breaks.
func lost(_ *proxy, _ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	panic(http.ErrAbortHandler)
}

// applied: the request is carried out, and the answer is lost.
func applied(p *proxy, _ http.ResponseWriter, r *http.Request) {
	if response, err := p.forward(r); err == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	panic(http.ErrAbortHandler)
}

// appliedThenError: the request is carried out, and the answer is an error.
func appliedThenError(p *proxy, w http.ResponseWriter, r *http.Request) {
	response, err := p.forward(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	response.Body.Close()
	answer(http.StatusInternalServerError, "InternalError")(p, w, r)
}

// answer: the server refuses the request.
func answer(status int, code string) func(*proxy, http.ResponseWriter, *http.Request) {
	return answerWith(status, code, "said the proxy")
}

func answerWith(status int, code, message string) func(*proxy, http.ResponseWriter, *http.Request) {
	return func(_ *proxy, w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		body := `<?xml version="1.0" encoding="UTF-8"?><Error><Code>` + code + `</Code><Message>` + message + `</Message></Error>`
		w.Header().Set("Content-Type", "application/xml")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// stall: the request is accepted, its body is not read, and no answer comes.
func stall(p *proxy, _ http.ResponseWriter, r *http.Request) {
	select {
	case <-p.done:
	case <-r.Context().Done():
	}
	panic(http.ErrAbortHandler)
}

// cut: only the first half of the answer's body arrives.
func cut(p *proxy, w http.ResponseWriter, r *http.Request) {
	halve(p, w, r)
	panic(http.ErrAbortHandler)
}

// cutAndStall: as cut, but the connection stays open.
func cutAndStall(p *proxy, w http.ResponseWriter, r *http.Request) {
	halve(p, w, r)
	stall(p, w, r)
}

func halve(p *proxy, w http.ResponseWriter, r *http.Request) {
	response, err := p.forward(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer response.Body.Close()
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	_, _ = io.CopyN(w, response.Body, response.ContentLength/2)
	_ = http.NewResponseController(w).Flush()
}

// flipRequest: one bit of the request's body is flipped.
func flipRequest(p *proxy, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	body[len(body)/2] ^= 1
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.pass(w, r)
}

// flipResponse: one bit of the answer's body is flipped.
func flipResponse(p *proxy, w http.ResponseWriter, r *http.Request) {
	response, err := p.forward(r)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	body[len(body)/2] ^= 1
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(body)
}

// forgetChecksum: the answer is that of a server that does not support checksums.
func forgetChecksum(p *proxy, w http.ResponseWriter, r *http.Request) {
	p.passChanged(w, r, func(h http.Header) { h.Del(checksumHeader) })
}
