package manifests

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// within is how long a test waits for what must happen.
const within = 60 * time.Second

// Each service starts with the arguments, the environment and the files of its container, although
// nothing that it depends on is there; its probes say that it works and is not ready; Prometheus
// gets its metrics with the certificate and the name of the PodMonitor, and others do not; and it
// ends in time.
func TestServicesStart(t *testing.T) {
	eachPod(t, func(t *testing.T, f *fleet, p podOf) {
		if p.replicas == 0 {
			return
		}
		t.Parallel()
		c := p.spec.Containers[0]
		service := startContainer(t, f, p)
		anybody := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // as the kubelet does
		for probe, want := range map[*corev1.Probe]int{c.LivenessProbe: http.StatusOK, c.ReadinessProbe: http.StatusServiceUnavailable} {
			if probe == nil || probe.HTTPGet == nil || portOf(p, probe.HTTPGet.Port) == 0 {
				t.Fatalf("a probe is missing, or its port: %+v", probe)
			}
			if probe.TimeoutSeconds < 4 {
				t.Errorf("/readyz takes up to three seconds, and the probe waits %d", probe.TimeoutSeconds)
			}
			url := fmt.Sprintf("%s://%s%s", strings.ToLower(string(probe.HTTPGet.Scheme)), service.address, probe.HTTPGet.Path)
			if got, body := service.await(t, anybody, url); got != want {
				t.Errorf("%s: %d %s, want %d", url, got, body, want)
			}
		}
		if got, _ := service.await(t, anybody, "https://"+service.address+"/metrics"); got != http.StatusUnauthorized {
			t.Errorf("metrics for anybody: %d", got)
		}
		for _, m := range all[*monitoringv1.PodMonitor](f) {
			if !selects(t, &m.Spec.Selector, p.labels) {
				continue
			}
			e := m.Spec.PodMetricsEndpoints[0]
			if got, body := service.await(t, scraper(t, f, &e), e.Scheme.String()+"://"+service.address+"/metrics"); got != http.StatusOK || !strings.Contains(body, "bctl_build_info") {
				t.Errorf("metrics for Prometheus: %d %s", got, body)
			}
		}
		service.stop(t, time.Duration(*p.spec.TerminationGracePeriodSeconds)*time.Second)
	})
}

// What runs once gets as far as Postgres, which is not there: its arguments and settings are
// understood.
func TestCommandsReachForPostgres(t *testing.T) {
	eachPod(t, func(t *testing.T, f *fleet, p podOf) {
		if p.replicas != 0 {
			return
		}
		t.Parallel()
		service := startContainer(t, f, p)
		if err := service.awaitLog(t.Context(), "db.example.com"); err != nil {
			t.Fatal(err)
		}
	})
}

// A running container, without Kubernetes.
type running struct {
	address string // of its port http
	log     string // file
	command *exec.Cmd
	ended   chan error
}

// startContainer runs what a container would, with /etc/bctl elsewhere, and its port on this
// machine only.
func startContainer(t *testing.T, f *fleet, p podOf) *running {
	t.Helper()
	program, err := bctl()
	if err != nil {
		t.Fatal(err)
	}
	c := p.spec.Containers[0]
	etc := t.TempDir()
	for name, data := range f.secretOf(t, p).Data {
		writeFile(t, filepath.Join(etc, name), data)
	}
	r := &running{address: freeAddress(t), log: filepath.Join(t.TempDir(), "log"), ended: make(chan error, 1)}
	command := exec.Command(program, c.Args...)
	for _, e := range c.Env {
		value := strings.ReplaceAll(e.Value, "/etc/bctl", etc)
		switch {
		case e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "metadata.name":
			value = "pod"
		case e.Name == "BCTL_HTTP_LISTEN":
			if value != ":"+strconv.Itoa(portNamed(p, "http")) {
				t.Errorf("it listens on %s", value)
			}
			value = r.address
		}
		command.Env = append(command.Env, e.Name+"="+value)
	}
	log, err := os.Create(r.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	r.command = command
	go func() { r.ended <- command.Wait() }() // ends with the process, which the cleanup kills
	t.Cleanup(func() {
		_ = command.Process.Kill()
		if t.Failed() {
			t.Logf("%s wrote:\n%s", p.name, r.output())
		}
	})
	return r
}

func (r *running) output() []byte {
	data, err := os.ReadFile(r.log)
	if err != nil {
		return []byte(err.Error())
	}
	return data
}

// await asks until there is an answer.
func (r *running) await(t *testing.T, client *http.Client, url string) (status int, body string) {
	t.Helper()
	err := eventually(t.Context(), func() error {
		response, err := client.Get(url)
		if err != nil {
			return cmp.Or(r.hasEnded(), err)
		}
		defer response.Body.Close()
		data, err := io.ReadAll(response.Body)
		status, body = response.StatusCode, string(data)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return status, body
}

// awaitLog waits for its log to say something, also as its last word.
func (r *running) awaitLog(ctx context.Context, text string) error {
	return eventually(ctx, func() error {
		ended := r.hasEnded()
		switch {
		case bytes.Contains(r.output(), []byte(text)):
			return nil
		case ended != nil:
			return ended
		default:
			return fmt.Errorf("its log does not say %q", text)
		}
	})
}

// errEnded is what no waiting mends.
var errEnded = errors.New("it has ended")

func (r *running) hasEnded() error {
	select {
	case status := <-r.ended:
		r.ended <- status
		return fmt.Errorf("%w: %v", errEnded, status)
	default:
		return nil
	}
}

func (r *running) stop(t *testing.T, grace time.Duration) {
	t.Helper()
	if err := r.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-r.ended:
		r.ended <- err
	case <-time.After(grace):
		t.Errorf("it works on %v after it was told to stop", grace)
	}
}

// eventually tries until it works, for as long as within.
func eventually(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil || errors.Is(err, errEnded) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// scraper is a client as Prometheus would be.
func scraper(t *testing.T, f *fleet, e *monitoringv1.PodMetricsEndpoint) *http.Client {
	t.Helper()
	data := func(s *corev1.SecretKeySelector) []byte {
		secret, ok := find[*corev1.Secret](f, s.Name)
		if !ok {
			t.Fatalf("no Secret %s", s.Name)
		}
		return secret.Data[s.Key]
	}
	pair, err := tls.X509KeyPair(data(e.TLSConfig.Cert.Secret), data(e.TLSConfig.KeySecret))
	if err != nil {
		t.Fatal(err)
	}
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(data(e.TLSConfig.CA.Secret))
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: authorities, ServerName: *e.TLSConfig.ServerName,
	}}}
}

func portOf(p podOf, port intstr.IntOrString) int {
	if port.Type == intstr.Int {
		return port.IntValue()
	}
	return portNamed(p, port.StrVal)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
