//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/bctl/bctl/internal/testenv"
)

// A host is the processes that run beside a tool's commands, and work for them.
type host interface {
	env() []string               // of the commands
	cpu() (user, system float64) // seconds, of all that it has run so far
	resetPeaks() error
	peaks() (map[string]int64, error) // bytes resident, by service, since resetPeaks
	storedBytes() (int64, error)
	close() error
}

// A fleetHost is bctl's services and their servers, each in one process on this machine. It shows
// the cost of a fleet compared with the same work in one process. Postgres syncs its commits.
type fleetHost struct {
	dir, config string
	bucket      string // directory
	cluster     *testenv.Cluster
	servers     []*testenv.Process
	services    []*testenv.Process
	names       []string // of services
}

// fleetShape is how many services there are of each kind.
type fleetShape struct{ walkers, readers, committers int }

var oneOfEach = fleetShape{1, 1, 1}

// theFiler is what the tree's file server is called in a fleet.
const theFiler = "bench"

// startFleet starts a fleet with a new repository, of which tree is a shard.
func startFleet(ctx context.Context, dir, tree string, shape fleetShape, env ...string) (_ *fleetHost, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f := &fleetHost{dir: dir, config: filepath.Join(dir, "fleet.yaml")}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	if f.cluster, err = testenv.OpenCluster(testenv.Durable); err != nil {
		return nil, err
	}
	nats, err := f.startNATS()
	if err != nil {
		return nil, err
	}
	store, err := f.startStore(ctx)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("index: {url: %q}\nstore: %s\nnats: {url: %q}\nworker_key: %q\ncommitter_key: %q\nidentity: %q\n",
		f.cluster.DSN(), store, nats, filepath.Join(dir, "worker.key"), filepath.Join(dir, "committer.key"), filepath.Join(dir, "identity.txt"))
	if err := os.WriteFile(f.config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	for _, args := range [][]string{{"init"}, {"filer", "add", theFiler}, {"shard", "add", theFiler, tree}} {
		if _, err := f.command(ctx, args...); err != nil {
			return nil, err
		}
	}
	if err := f.startServices(shape, env); err != nil {
		return nil, err
	}
	return f, nil
}

// command runs bctl with the fleet's settings and returns what it prints.
func (f *fleetHost) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "bctl", args...)
	cmd.Env = f.commandEnv()
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("bctl %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}

func (f *fleetHost) env() []string { return []string{"BCTL_CONFIG=" + f.config, "HOME=" + f.dir} }

func (f *fleetHost) commandEnv() []string { return append(os.Environ(), f.env()...) }

// lastSeconds returns how long the last snapshot took, by the index. The time of the command is
// less exact: it looks only once per second.
func (f *fleetHost) lastSeconds(ctx context.Context) (float64, error) {
	out, err := f.command(ctx, "snapshot", "ls", "--json", "--limit", "1")
	if err != nil {
		return 0, err
	}
	var s struct{ Started, Committed time.Time }
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return 0, fmt.Errorf("bctl snapshot ls: %w: %s", err, out)
	}
	return s.Committed.Sub(s.Started).Seconds(), nil
}

// launch starts a server or service; f ends it.
func (f *fleetHost) launch(c testenv.Command) (*testenv.Process, error) {
	return testenv.Launch(c, filepath.Join(f.dir, c.Name+".log"))
}

func (f *fleetHost) startNATS() (url string, err error) {
	path, err := testenv.Program("nats-server")
	if err != nil {
		return "", err
	}
	port, err := testenv.FreePort()
	if err != nil {
		return "", err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	p, err := f.launch(testenv.Command{
		Name: "nats-server", Path: path, Ready: testenv.TCPReady(address),
		Args: []string{"--addr", "127.0.0.1", "--port", fmt.Sprint(port), "--jetstream", "--store_dir", filepath.Join(f.dir, "jetstream")},
	})
	if err != nil {
		return "", err
	}
	f.servers = append(f.servers, p)
	return "nats://" + address, nil
}

// startStore starts an S3 server and returns the settings to reach it, as YAML.
func (f *fleetHost) startStore(ctx context.Context) (settings string, err error) {
	const bucket, access, region = "bench", "bench", "us-east-1"
	path, err := testenv.Program("versitygw")
	if err != nil {
		return "", err
	}
	port, err := testenv.FreePort()
	if err != nil {
		return "", err
	}
	data, secret, address := filepath.Join(f.dir, "s3"), rand.Text(), fmt.Sprintf("127.0.0.1:%d", port)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return "", err
	}
	p, err := f.launch(testenv.Command{
		Name: "versitygw", Path: path, Ready: testenv.HTTPReady("http://" + address + "/health"),
		Args: []string{"--port", address, "--region", region, "--health", "/health", "--quiet", "posix", data},
		Env:  []string{"ROOT_ACCESS_KEY=" + access, "ROOT_SECRET_KEY=" + secret},
	})
	if err != nil {
		return "", err
	}
	f.servers = append(f.servers, p)
	client, err := minio.New(address, &minio.Options{Creds: credentials.NewStaticV4(access, secret, ""), Region: region})
	if err != nil {
		return "", err
	}
	f.bucket = filepath.Join(data, bucket)
	return fmt.Sprintf("{url: %q, endpoint: %q, region: %s, access_key: %q, secret_key: %q}", "s3://"+bucket+"/repo", "http://"+address, region, access, secret),
		client.MakeBucket(ctx, bucket, minio.MakeBucketOptions{Region: region})
}

func (f *fleetHost) startServices(shape fleetShape, env []string) error {
	bctl, err := exec.LookPath("bctl")
	if err != nil {
		return err
	}
	for _, kind := range []struct {
		name string
		n    int
	}{{"committer", shape.committers}, {"walker", shape.walkers}, {"reader", shape.readers}} {
		for range kind.n {
			name := kind.name
			for n := 2; slices.Contains(f.names, name); n++ {
				name = fmt.Sprintf("%s-%d", kind.name, n)
			}
			port, err := testenv.FreePort()
			if err != nil {
				return err
			}
			address := fmt.Sprintf("127.0.0.1:%d", port)
			p, err := f.launch(testenv.Command{
				Name: name, Path: bctl, Args: []string{kind.name}, Ready: testenv.HTTPReady("http://" + address + "/readyz"),
				Env: append(append(f.env(), "BCTL_WORKER_NAME="+name, "BCTL_HTTP_LISTEN="+address), env...),
			})
			if err != nil {
				return err
			}
			f.services, f.names = append(f.services, p), append(f.names, name)
		}
	}
	return nil
}

// cpu is that of services and servers alike.
func (f *fleetHost) cpu() (user, system float64) { return descendantsCPU() }

func (f *fleetHost) resetPeaks() error {
	var failed error
	for _, p := range f.services {
		failed = errors.Join(failed, resetPeak(p.PID()))
	}
	return failed
}

func (f *fleetHost) peaks() (map[string]int64, error) {
	peaks := map[string]int64{}
	for i, p := range f.services {
		if !p.Running() {
			return nil, fmt.Errorf("%s has ended: %s", f.names[i], p.Output())
		}
		peak, err := peakBytes(p.PID())
		if err != nil {
			return nil, err
		}
		peaks[f.names[i]] = peak
	}
	return peaks, nil
}

// storedBytes is what the store and the index take up.
func (f *fleetHost) storedBytes() (int64, error) {
	objects, err := diskBytes(f.bucket)
	if err != nil {
		return 0, err
	}
	index, err := f.query(context.Background(), "SELECT pg_database_size(current_database())")
	return objects + index, err
}

// query returns the number that is the answer.
func (f *fleetHost) query(ctx context.Context, sql string, args ...any) (n int64, err error) {
	conn, err := pgx.Connect(ctx, f.cluster.DSN())
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	err = conn.QueryRow(ctx, sql, args...).Scan(&n)
	return n, err
}

// stopServices ends the services, as a restart of their machines would.
func (f *fleetHost) stopServices() {
	for _, p := range f.services {
		p.Signal(syscall.SIGTERM)
	}
	for _, p := range f.services {
		p.Stop()
	}
	f.services, f.names = nil, nil
}

// close ends all of it, the services first; files stay.
func (f *fleetHost) close() error {
	f.stopServices()
	for _, p := range f.servers {
		p.Kill()
	}
	if f.cluster == nil {
		return nil
	}
	return f.cluster.Close()
}

// serviceCPU sums the CPU seconds of the services of a kind.
func (f *fleetHost) serviceCPU(kind string) (user, system float64) {
	for i, p := range f.services {
		if strings.HasPrefix(f.names[i], kind) {
			u, s := processCPU(p.PID())
			user, system = user+u, system+s
		}
	}
	return user, system
}
