package testenv

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// LockedS3 is an S3Server that is configured with the folder "s3" of an installation (bctl deploy
// init): its certificate, its accounts, and the bucket and policies that apply.sh makes. AccessKey
// and SecretKey are the root user's.
type LockedS3 struct {
	*Process
	Endpoint  string // host:port
	AccessKey string
	SecretKey string
	Region    string
	Dir       string // the directory of the backend
	folder    string
}

// LockVersityGW starts a versitygw at this port of 127.0.0.1, for which the installation's endpoint
// is made.
func LockVersityGW(t testing.TB, folder string, port int) *LockedS3 {
	t.Helper()
	path := versitygw.path(t)
	s := newLockedS3(t, folder, port)
	arguments := []string{
		"--port", s.Endpoint, "--region", s.Region, "--health", "/health", "--quiet", "--iam-dir", filepath.Join(folder, "iam"),
		"--cert", filepath.Join(folder, "server.pem"), "--key", filepath.Join(folder, "server.key"), "posix",
	}
	if !xattrsWork(s.Dir) {
		sidecar := filepath.Join(filepath.Dir(s.Dir), "sidecar")
		if err := os.Mkdir(sidecar, 0o700); err != nil {
			t.Fatal(err)
		}
		arguments = append(arguments, "--sidecar", sidecar)
	}
	s.Process = Start(t, Command{
		Name: "versitygw", Path: path, Args: append(arguments, s.Dir),
		Env:   []string{"ROOT_ACCESS_KEY=" + s.AccessKey, "ROOT_SECRET_KEY=" + s.SecretKey},
		Ready: s.ready("/health"),
	})
	s.Apply(t)
	return s
}

// LockMinio is LockVersityGW with a minio.
func LockMinio(t testing.TB, folder string, port int) *LockedS3 {
	t.Helper()
	path := minioBin.path(t)
	s := newLockedS3(t, folder, port)
	certificates := filepath.Join(t.TempDir(), "certs")
	if err := os.Mkdir(certificates, 0o700); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{"server.pem": "public.crt", "server.key": "private.key"} {
		data, err := os.ReadFile(filepath.Join(folder, from))
		if err == nil {
			err = os.WriteFile(filepath.Join(certificates, to), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Process = Start(t, Command{
		Name: "minio", Path: path,
		Args: []string{"server", "--quiet", "--certs-dir", certificates, "--address", s.Endpoint, s.Dir},
		Env: []string{
			"MINIO_ROOT_USER=" + s.AccessKey, "MINIO_ROOT_PASSWORD=" + s.SecretKey, "MINIO_REGION=" + s.Region,
			"MINIO_BROWSER=off", "MINIO_UPDATE=off", "MINIO_CI_CD=on",
		},
		Ready: s.ready("/minio/health/ready"),
	})
	s.Apply(t)
	return s
}

// Apply runs the installation's apply.sh, with the root user's key.
func (s *LockedS3) Apply(t testing.TB) {
	t.Helper()
	apply := exec.Command("sh", filepath.Join(s.folder, "apply.sh"))
	apply.Env = append(os.Environ(),
		"PATH="+filepath.Dir(mcBin.path(t))+string(os.PathListSeparator)+os.Getenv("PATH"),
		"MC_HOST_store=https://"+s.AccessKey+":"+s.SecretKey+"@"+s.Endpoint,
		"MC_CONFIG_DIR="+t.TempDir(),
	)
	if output, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("apply.sh: %v: %s", err, output)
	}
}

func newLockedS3(t testing.TB, folder string, port int) *LockedS3 {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	return &LockedS3{
		Endpoint: fmt.Sprintf("127.0.0.1:%d", port), Region: s3Region, Dir: directory, folder: folder,
		AccessKey: "root-" + randomName(), SecretKey: rand.Text(),
	}
}

// ready is HTTPReady of a server that has the installation's certificate, also after a rotation of
// its authority.
func (s *LockedS3) ready(path string) func(context.Context) error {
	return func(ctx context.Context) error {
		authority, err := os.ReadFile(filepath.Join(s.folder, "ca.pem"))
		if err != nil {
			return err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(authority) {
			return errors.New("no certificate in ca.pem")
		}
		client := &http.Client{
			Timeout:   5 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true},
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.Endpoint+path, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		if response.StatusCode != http.StatusOK {
			err = errors.Join(err, fmt.Errorf("it answers %s", response.Status))
		}
		return errors.Join(err, response.Body.Close())
	}
}
