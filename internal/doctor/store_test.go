package doctor_test

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/doctor"
	"github.com/bctl/bctl/internal/installation"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/services/bctl/open"
)

// inS3 returns the settings of a repository whose store is in a bucket of its own.
func inS3(t testing.TB, server *testenv.S3Server) settings {
	t.Helper()
	dir := t.TempDir()
	s := settings{
		"BCTL_INDEX": filepath.Join(dir, "index.db"), "BCTL_WORKER_KEY": filepath.Join(dir, "worker.key"),
		"BCTL_COMMITTER_KEY": filepath.Join(dir, "committer.key"),
		"BCTL_STORE":         "s3://" + server.NewBucket(t) + "/repo", "BCTL_STORE_ENDPOINT": "http://" + server.Endpoint, "BCTL_STORE_REGION": server.Region,
		"BCTL_STORE_ACCESS_KEY": server.AccessKey, "BCTL_STORE_SECRET_KEY": server.SecretKey,
	}
	initialize(t, s)
	return s
}

// objects returns the names of all objects in the store.
func objects(t testing.TB, s settings) string {
	t.Helper()
	st, err := open.Store(t.Context(), s.load(t), false, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	var names []string
	for o, err := range st.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, o.Name)
	}
	return strings.Join(names, " ")
}

func TestS3Healthy(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) *testenv.S3Server{"versitygw": testenv.VersityGW, "minio": testenv.Minio} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := inS3(t, start(t))
			for _, role := range []installation.Role{"", installation.Reader, installation.Committer, installation.Operator, installation.Walker} {
				found := examine(t, s, role, "store")
				found.onlyFails(t)
				found.want(t, "store.server", doctor.OK)
				found.want(t, "store.clock", doctor.OK)
				found.want(t, "store.tls", doctor.Warning, "to this machine")
				found.hides(t, s["BCTL_STORE_SECRET_KEY"])
				found.want(t, "store.credentials", doctor.OK, "holds repository")
				if role == "" || role == installation.Reader {
					for _, id := range []string{"object", "overwrite", "checksum", "read", "listed", "latency", "may put packs"} {
						found.want(t, "store."+id, doctor.OK)
					}
					found.want(t, "store.tidy", doctor.OK, "2 objects deleted")
				}
				if role == installation.Reader {
					found.want(t, "store.may put segments", doctor.Warning, "a reader may put objects there")
				}
				if role == installation.Operator {
					found.want(t, "store.object", doctor.NotTested)
					found.want(t, "store.may put packs", doctor.Warning)
				}
				if role != installation.Walker {
					found.want(t, "store.may delete", doctor.Warning, "packs may be deleted")
				}
			}
			if names := objects(t, s); names != store.ConfigName {
				t.Errorf("there is left: %s", names)
			}
		})
	}
}

func TestS3Broken(t *testing.T) {
	t.Parallel()
	server := testenv.VersityGW(t)
	s := inS3(t, server)
	t.Run("no object lock", func(t *testing.T) {
		found := examine(t, s.with(settings{"BCTL_STORE_OBJECT_LOCK": "governance"}), installation.Operator, "store")
		found.want(t, "store.object lock", doctor.Failure, "not enabled", "a bucket with object lock")
		found.onlyFails(t, "store.object lock")
	})
	t.Run("no repository", func(t *testing.T) {
		found := examine(t, s.with(settings{"BCTL_STORE": s["BCTL_STORE"] + "-other"}), "", "store")
		found.want(t, "store.credentials", doctor.Failure, "contains no repository", "correct store.url")
		found.onlyFails(t, "store.credentials")
	})
	t.Run("no bucket", func(t *testing.T) {
		found := examine(t, s.with(settings{"BCTL_STORE": "s3://there-is-none"}), "", "store")
		found.want(t, "store.credentials", doctor.Failure, "NoSuchBucket", "create the bucket")
		found.want(t, "store.object", doctor.NotTested)
	})
	t.Run("wrong secret", func(t *testing.T) {
		found := examine(t, s.with(settings{"BCTL_STORE_SECRET_KEY": "tell-nobody"}), "", "store")
		found.want(t, "store.credentials", doctor.Failure, "secret key is not that of the access key", "correct the credentials")
		found.hides(t, "tell-nobody")
	})
	t.Run("unknown key", func(t *testing.T) {
		found := examine(t, s.with(settings{"BCTL_STORE_ACCESS_KEY": "nobody"}), "", "store")
		found.want(t, "store.credentials", doctor.Failure, "does not know the access key")
	})
	t.Run("nobody there", func(t *testing.T) {
		found := examine(t, s.with(settings{"BCTL_STORE_ENDPOINT": "http://127.0.0.1:1"}), "", "store")
		found.want(t, "store.server", doctor.Failure, "connection refused", "start the store")
	})
	t.Run("no name", func(t *testing.T) {
		examine(t, settings{}, "", "store").want(t, "store", doctor.Failure, "store.url")
		examine(t, settings{}, installation.Walker, "store").want(t, "store", doctor.NotTested, "need none")
	})
	t.Run("may only read", func(t *testing.T) {
		proxied := s.through(t, func(r *http.Request) *http.Response {
			if r.Method == http.MethodPut || r.Method == http.MethodDelete {
				return denied(r)
			}
			return nil
		}, nil)
		found := examine(t, proxied, installation.Reader, "store")
		found.want(t, "store.may put packs", doctor.Failure, "not allowed")
		found.want(t, "store.object", doctor.Failure, "grant it permission to put objects")
		found.want(t, "store.read", doctor.NotTested, "store.object")
		found.want(t, "store.may delete", doctor.OK, "refused")
		found = examine(t, proxied, installation.Operator, "store")
		found.want(t, "store.may put packs", doctor.OK, "as it should be")
		found.onlyFails(t)
	})
	t.Run("as an installed reader", func(t *testing.T) {
		found := examine(t, s.through(t, func(r *http.Request) *http.Response {
			pack := r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/packs/")
			get := r.Method == http.MethodGet && !r.URL.Query().Has("prefix") && !strings.HasSuffix(r.URL.Path, "/repository")
			if pack || get || r.Method == http.MethodHead {
				return nil
			}
			return denied(r)
		}, nil), installation.Reader, "store")
		found.onlyFails(t)
		found.want(t, "store.credentials", doctor.OK, "a reader does not need it")
		found.want(t, "store.may put packs", doctor.OK)
		found.want(t, "store.may put segments", doctor.OK, "as it should be")
		found.want(t, "store.may list", doctor.OK, "refused")
		found.want(t, "store.read", doctor.OK)
		found.want(t, "store.throughput", doctor.NotTested, "8.0 MiB would remain")
		found.want(t, "store.tidy", doctor.OK, "these objects remain, which belong to no backup: packs/00000000000000000000000000000000/")
		if names := objects(t, s); strings.Count(names, "packs/") != 1 {
			t.Errorf("there is left: %s", names)
		}
		prefix := "/" + strings.TrimPrefix(s["BCTL_STORE"], "s3://") + "/"
		found = examine(t, s.through(t, func(r *http.Request) *http.Response {
			// A full store refuses an object that it does not have, and only that.
			if r.Method == http.MethodPut && !slices.Contains(strings.Fields(objects(t, s)), strings.TrimPrefix(r.URL.Path, prefix)) {
				return refuse(r, http.StatusInsufficientStorage, "XMinioStorageFull")
			}
			return nil
		}, nil), installation.Reader, "store")
		found.want(t, "store.object", doctor.Failure, "free space")
	})
	t.Run("overwrites, and does not check", func(t *testing.T) {
		found := examine(t, s.through(t, nil, func(r *http.Response) {
			// Reports success for refused requests.
			if r.Request.Method == http.MethodPut && r.StatusCode >= 400 {
				r.Status, r.StatusCode = "200 OK", http.StatusOK
				r.Header = http.Header{"Etag": {`"x"`}, "X-Amz-Checksum-Crc64nvme": {r.Request.Header.Get("X-Amz-Checksum-Crc64nvme")}}
				r.Body, r.ContentLength = http.NoBody, 0
			}
		}), "", "store")
		found.want(t, "store.overwrite", doctor.Warning, "If-None-Match is ignored")
		found.want(t, "store.checksum", doctor.Warning, "arrives damaged is stored")
	})
	t.Run("its clock is wrong", func(t *testing.T) {
		for ahead, status := range map[time.Duration]doctor.Status{time.Hour: doctor.Failure, -time.Minute: doctor.Warning} {
			found := examine(t, s.through(t, nil, func(r *http.Response) {
				r.Header.Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
			}), "", "store")
			found.want(t, "store.clock", status, "NTP")
		}
	})
	t.Run("returns other bytes", func(t *testing.T) {
		found := examine(t, s.through(t, nil, func(r *http.Response) {
			if r.Request.Header.Get("Range") != "" {
				r.Body = zeros{r.Body}
			}
		}), "", "store")
		found.want(t, "store.read", doctor.Failure, "wrong bytes")
	})
}

// zeros is a body in which every byte is zero.
type zeros struct{ io.ReadCloser }

func (z zeros) Read(p []byte) (int, error) {
	n, err := z.ReadCloser.Read(p)
	clear(p[:n])
	return n, err
}

// through returns settings with a proxy in front of the store, which may respond itself and change
// responses.
func (s settings) through(t testing.TB, answer func(*http.Request) *http.Response, change func(*http.Response)) settings {
	t.Helper()
	server, err := url.Parse(s["BCTL_STORE_ENDPOINT"])
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { // the signature includes the host
			r.SetURL(server)
			r.Out.Host = r.In.Host
		},
		Transport: transport(func(r *http.Request) (*http.Response, error) {
			if answer != nil {
				if response := answer(r); response != nil {
					return response, nil
				}
			}
			return http.DefaultTransport.RoundTrip(r)
		}),
		ModifyResponse: func(r *http.Response) error {
			if change != nil {
				change(r)
			}
			return nil
		},
	}
	at := httptest.NewServer(proxy)
	t.Cleanup(at.Close)
	return s.with(settings{"BCTL_STORE_ENDPOINT": at.URL})
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// denied is the response of a store to a forbidden request.
func denied(r *http.Request) *http.Response {
	return refuse(r, http.StatusForbidden, "AccessDenied")
}

func refuse(r *http.Request, status int, code string) *http.Response {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>The server refuses it.</Message></Error>", code)
	response := w.Result()
	response.Request = r
	return response
}

func TestS3OverTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	secure := func(left time.Duration, host ...string) string {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
		}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		if len(host) > 0 {
			server.Listener.Close()
			var err error
			if server.Listener, err = net.Listen("tcp", host[0]+":0"); err != nil {
				t.Fatal(err)
			}
		}
		server.TLS = a.server(left)
		server.StartTLS()
		t.Cleanup(server.Close)
		return server.URL
	}
	s := settings{"BCTL_STORE": "s3://bucket", "BCTL_STORE_ACCESS_KEY": "a", "BCTL_STORE_SECRET_KEY": "b"}
	trusting := s.with(settings{"BCTL_STORE_CA_FILE": a.File})
	found := examine(t, trusting.with(settings{"BCTL_STORE_ENDPOINT": secure(year)}), "", "store")
	found.want(t, "store.tls", doctor.OK, "364 days left", "TLS 1.3")
	examine(t, s.with(settings{"BCTL_STORE_ENDPOINT": secure(year)}), "", "store").want(t, "store.server", doctor.Failure, "unknown authority", "store.ca_file")
	examine(t, trusting.with(settings{"BCTL_STORE_ENDPOINT": secure(-time.Hour)}), "", "store").want(t, "store.server", doctor.Failure, "expired", "replace the server's certificate")
	examine(t, trusting.with(settings{"BCTL_STORE_ENDPOINT": secure(year, "127.0.0.2")}), "", "store").
		want(t, "store.server", doctor.Failure, "127.0.0.2", "use a name that is in the server's certificate")
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	examine(t, trusting.with(settings{"BCTL_STORE_ENDPOINT": strings.Replace(plain.URL, "http:", "https:", 1)}), "", "store").
		want(t, "store.server", doctor.Failure, "enable TLS on the server")
}

// A store that accepts a connection and does not respond is a failure within the time limit.
func TestS3ThatHangs(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	p := open.Doctor(settings{"BCTL_STORE": "s3://bucket", "BCTL_STORE_ENDPOINT": "http://" + silent.Addr().String(), "BCTL_STORE_ACCESS_KEY": "a", "BCTL_STORE_SECRET_KEY": "b"}.load(t))
	groups := doctor.Groups(&p)
	for n := range groups {
		for c := range groups[n].Checks {
			groups[n].Checks[c].Timeout = 200 * time.Millisecond
		}
	}
	var found doctor.Finding
	doctor.Run(t.Context(), groups, func(o doctor.Outcome) {
		if o.ID == "store.server" {
			found = o.Finding
		}
	})
	if found.Status != doctor.Failure {
		t.Errorf("%+v", found)
	}
}

func TestOnThisMachine(t *testing.T) {
	t.Parallel()
	repository := func(t *testing.T) settings {
		s := settings{"BCTL_REPO": filepath.Join(t.TempDir(), "repo")}
		initialize(t, s)
		return s
	}
	t.Run("healthy", func(t *testing.T) {
		s := repository(t)
		before := objects(t, s)
		found := examine(t, s, "", "index", "store", "configuration", "nats")
		found.onlyFails(t)
		for _, id := range []string{"index.file", "index.schema", "index.integrity", "index.worker_key", "store.directory", "store.repository", "store.object",
			"store.overwrite", "store.read", "store.listed", "configuration.secrets", "configuration.files"} {
			found.want(t, id, doctor.OK)
		}
		found.want(t, "nats", doctor.NotTested)
		found.want(t, "store.tidy", doctor.OK, "2 objects deleted")
		if after := objects(t, s); after != before {
			t.Errorf("before: %s, after: %s", before, after)
		}
	})
	t.Run("damaged index", func(t *testing.T) {
		s := repository(t)
		path := filepath.Join(s["BCTL_REPO"], "index.db")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		const page = 4096
		for at := 3 * page; at < len(data); at += page { // keep the tree's root
			copy(data[at:], strings.Repeat("damage", 10))
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		examine(t, s, "", "index").want(t, "index.integrity", doctor.Failure, "bctl index rebuild")
	})
	t.Run("no repository", func(t *testing.T) {
		found := examine(t, settings{"BCTL_REPO": t.TempDir()}, "", "index", "store")
		found.want(t, "index.file", doctor.Failure, "bctl init")
		found.want(t, "index.integrity", doctor.NotTested)
		found.want(t, "store.directory", doctor.Failure, "bctl init")
	})
	t.Run("another's worker key", func(t *testing.T) {
		s := repository(t).with(settings{"BCTL_WORKER_KEY": filepath.Join(repository(t)["BCTL_REPO"], "worker.key")})
		examine(t, s, "", "index").want(t, "index.worker_key", doctor.Failure, "belongs to repository")
	})
	t.Run("an empty store", func(t *testing.T) {
		s := repository(t).with(settings{"BCTL_STORE": t.TempDir()})
		examine(t, s, "", "store").want(t, "store.repository", doctor.Failure, "not mounted, or it is another store", "correct --repo or store.url")
	})
	t.Run("index for all to read", func(t *testing.T) {
		s := repository(t)
		if err := os.Chmod(filepath.Join(s["BCTL_REPO"], "index.db"), 0o644); err != nil {
			t.Fatal(err)
		}
		examine(t, s, "", "index").want(t, "index.file", doctor.Warning, "chmod o=")
	})
}

// A repository on a read-only or full disk can be read and restored from. The problem is reported
// once for the index and once for the store, and everything else is checked.
func TestOnADiskThatCannotBeWrittenTo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(testenv.Disk) error
		words string
	}{
		"read-only": {func(d testenv.Disk) error { return d.SetReadOnly(true) }, "read-only file system"},
		"full":      {testenv.Disk.Fill, "0 B free"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := testenv.NewDisk(t, 16<<20)
			s := settings{"BCTL_REPO": filepath.Join(disk.Dir, "repo")}
			initialize(t, s)
			if err := test.spoil(disk); err != nil {
				t.Fatal(err)
			}
			found := examine(t, s, "", "index", "store")
			found.onlyFails(t, "index.place", "store.place", "store.object")
			found.want(t, "index.place", doctor.Failure, test.words, "existing snapshots can be restored")
			found.want(t, "store.place", doctor.Failure, test.words)
			found.want(t, "store.object", doctor.Failure, map[string]string{"read-only": "mount it", "full": "free space"}[name])
			for _, id := range []string{"index.file", "index.schema", "index.integrity", "index.worker_key", "store.directory", "store.repository"} {
				found.want(t, id, doctor.OK)
			}
		})
	}
}
