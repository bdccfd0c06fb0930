package testenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"sort"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoPostgres reports that no Postgres server is installed.
var ErrNoPostgres = errors.New("no Postgres server: install one (Debian: apt-get install postgresql) or set TEST_POSTGRES_DSN")

// Cluster is a private Postgres server in a temporary directory, on a loopback port, with a random
// password.
type Cluster struct {
	process   *Process
	directory string
	dsn       string
	janitor   *exec.Cmd
	lifeline  io.Closer // the janitor's standard input, open until Close or the end of this process
}

// Durability is what a cluster's commits survive.
type Durability bool

// Commits of a Durable cluster survive a power cut. Those of a Fast one survive only the process.
// That suffices for conformance tests, which would otherwise wait for the disk.
const (
	Fast    Durability = false
	Durable Durability = true
)

// OpenCluster creates a cluster and starts it. The caller must call Close. Tests call Postgres or
// PostgresServer instead.
func OpenCluster(durability Durability) (*Cluster, error) {
	initdb, postgres, err := postgresPrograms()
	if err != nil {
		return nil, err
	}
	credential, err := postgresCredential()
	if err != nil {
		return nil, err
	}
	directory, err := clusterDirectory(durability)
	if err != nil {
		return nil, err
	}
	if credential != nil {
		if err := os.Chown(directory, int(credential.Uid), int(credential.Gid)); err != nil {
			return nil, err
		}
	}
	cluster := &Cluster{directory: directory}
	if err := cluster.startJanitor(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(directory))
	}
	if err := cluster.initialize(initdb, postgres, credential, durability); err != nil {
		return nil, errors.Join(err, cluster.remove())
	}
	return cluster, nil
}

// clusterDirectory makes a directory for a cluster, in memory if that is durable enough.
func clusterDirectory(durability Durability) (string, error) {
	const prefix = "bctl-postgres-"
	if durability == Fast {
		if directory, err := makeInMemory(prefix); err != nil || directory != "" {
			return directory, err
		}
	}
	return os.MkdirTemp("", prefix)
}

func (c *Cluster) initialize(initdb, postgres string, credential *syscall.Credential, durability Durability) error {
	password := rand.Text()
	passwordFile := filepath.Join(c.directory, "password")
	if err := os.WriteFile(passwordFile, []byte(password), 0o644); err != nil {
		return err
	}
	data := filepath.Join(c.directory, "data")
	// A password is needed, because otherwise every user of the machine could connect as superuser.
	command := exec.Command(initdb, "--pgdata", data, "--username", "bctl", "--pwfile", passwordFile,
		"--auth", "password", "--encoding", "UTF8", "--locale", "C", "--no-sync")
	command.Dir = c.directory
	command.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, lastLine(string(output)))
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	c.dsn = fmt.Sprintf("postgres://bctl:%s@127.0.0.1:%d/postgres?sslmode=disable", password, port)
	c.process, err = start(Command{
		Name:       "postgres",
		Path:       postgres,
		Args:       postgresArguments(data, port, durability),
		Dir:        c.directory,
		Credential: credential,
		Ready:      func(ctx context.Context) error { return pingPostgres(ctx, c.dsn) },
		// SIGKILL would leave the backends and a shared memory segment behind.
		DeathSignal: syscall.SIGQUIT,
	}, filepath.Join(c.directory, "output"))
	return err
}

func postgresArguments(data string, port int, durability Durability) []string {
	arguments := []string{"-D", data, "-p", strconv.Itoa(port), "-h", "127.0.0.1", "-k", "",
		"-c", "max_connections=300", "-c", "shared_buffers=128MB"}
	if durability == Fast {
		arguments = append(arguments, "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
	}
	return arguments
}

func pingPostgres(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// DSN returns the DSN of the cluster's database "postgres".
func (c *Cluster) DSN() string { return c.dsn }

// Close stops the cluster and removes it.
func (c *Cluster) Close() error {
	c.process.stop(syscall.SIGINT) // "fast": does not wait for clients
	return c.remove()
}

func (c *Cluster) remove() error {
	return errors.Join(os.RemoveAll(c.directory), c.lifeline.Close(), c.janitor.Wait())
}

// startJanitor starts a process that removes the directory when this process and the server have
// ended in any way. Otherwise the directory would remain if a run is killed, or if all tests of a
// binary share the cluster.
func (c *Cluster) startJanitor() error {
	script := `cat >/dev/null
while pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
rm -rf -- "$1"`
	c.janitor = exec.Command("/bin/sh", "-c", script, "sh", c.directory)
	c.janitor.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	lifeline, err := c.janitor.StdinPipe()
	if err != nil {
		return err
	}
	c.lifeline = lifeline
	return c.janitor.Start()
}

func postgresPrograms() (initdb, postgres string, err error) {
	directories := []string{}
	if path, err := exec.LookPath("initdb"); err == nil {
		// Debian and others link single programs into PATH. The others are beside the link's
		// target.
		if path, err = filepath.EvalSymlinks(path); err == nil {
			directories = append(directories, filepath.Dir(path))
		}
	}
	installed, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	sort.Slice(installed, func(i, j int) bool { return majorVersion(installed[i]) > majorVersion(installed[j]) })
	for _, directory := range append(directories, installed...) {
		initdb, postgres = filepath.Join(directory, "initdb"), filepath.Join(directory, "postgres")
		if isProgram(initdb) && isProgram(postgres) {
			return initdb, postgres, nil
		}
	}
	return "", "", ErrNoPostgres
}

func majorVersion(binDirectory string) int {
	version, _ := strconv.Atoi(filepath.Base(filepath.Dir(binDirectory)))
	return version
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// postgresCredential returns the user to run the server as if this process runs as root, because
// the server refuses to run as root. Otherwise it returns nil.
func postgresCredential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(account.Uid, 10, 32)
		if err != nil {
			continue
		}
		gid, err := strconv.ParseUint(account.Gid, 10, 32)
		if err != nil {
			continue
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("Postgres does not run as root, and there is no user postgres or nobody to run it as")
}
