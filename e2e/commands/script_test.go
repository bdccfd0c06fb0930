// Package commands tests the commands of bctl with scripts, which are also examples of their use.
package commands

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
	"github.com/bctl/bctl/services/bctl/cli"
	"github.com/bctl/bctl/services/bctl/serve"
)

// commandTimeout ends a command that hangs, so that its stacks show where.
const commandTimeout = 15 * time.Minute

func TestMain(m *testing.M) {
	testscript.Main(testenv.InMemory{M: m}, map[string]func(){
		"bctl": func() {
			time.AfterFunc(commandTimeout, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGQUIT) })
			os.Exit(cli.Main(cli.Services{Walker: serve.Walker, Reader: serve.Reader, Pruner: serve.Pruner, Committer: serve.Committer, Scrubber: serve.Scrubber, Restorer: serve.Restorer}))
		},
	})
}

// The scripts are examples of every command. In addition to testscript's commands they have
//
//	status N COMMAND ARGS…    runs a command that must end with exit status N
//	treeequal A B             compares everything in two trees that a backup restores
//	maketree DIR FILES BYTES  creates files, the same ones each time
//	await COMMAND ARGS…        repeats a command until it prints something
//	hold FILE                 locks a file until the script ends
//	sql FILE STATEMENT        changes a SQLite database
//	disk DIR BYTES            mounts an empty file system of that size, until the script ends
//	disk DIR STATE            makes it read-only, writable, full (with a file) or free (without it)
//	bind FROM TO              bind-mounts a directory or file, until the script ends or unbinds TO
//	unbind TO                 undoes it
//
// and the conditions [mount] (this user may mount file systems), [fuse] (and has FUSE), [long]
// (make test-long is running) and [capless] (root can give up the capability to read everything).
func TestScripts(t *testing.T) {
	testscript.Run(t, params("script", func(e *testscript.Env) {
		e.Setenv("BCTL_REPO", filepath.Join(e.WorkDir, "repo"))
	}))
}

// The scripts of an NFS server work in a directory that it exports: that is $NFS$WORK, with the
// options $OPTIONS.
func TestNFSScripts(t *testing.T) {
	nfs := exported(t)
	p := params("nfs", func(e *testscript.Env) {
		e.Setenv("BCTL_REPO", filepath.Join(e.WorkDir, "repo"))
		nfs.set(e)
	})
	p.WorkdirRoot = nfs.root
	testscript.Run(t, p)
}

// An export is a directory that an NFS server exports.
type export struct {
	root   string
	server *testenv.NFSServer
}

func exported(t *testing.T) export {
	t.Helper()
	root := t.TempDir()
	return export{root, testenv.Ganesha(t, root)}
}

func (x export) set(e *testscript.Env) {
	e.Setenv("NFS", fmt.Sprintf("nfs://127.0.0.1:%d", x.server.Port))
	e.Setenv("OPTIONS", fmt.Sprintf("mountport=%d&timeout=500ms", x.server.MountPort)) // it drops requests about what changes rapidly
}

// The scripts of a fleet have their own Postgres database and NATS server, and start services
// themselves.
func TestFleetScripts(t *testing.T) {
	testscript.Run(t, params("fleet", inFleet(t)))
}

func TestNFSFleetScripts(t *testing.T) {
	nfs, fleet := exported(t), inFleet(t)
	p := params("nfsfleet", func(e *testscript.Env) {
		fleet(e)
		nfs.set(e)
	})
	p.WorkdirRoot = nfs.root
	testscript.Run(t, p)
}

func inFleet(t *testing.T) func(*testscript.Env) {
	return func(e *testscript.Env) {
		e.Setenv("BCTL_NATS", testenv.NATS(t).URL())
		e.Setenv("BCTL_INDEX", testenv.Postgres(t))
		e.Setenv("BCTL_INDEX_MAX_CONNECTIONS", "8")
		e.Setenv("BCTL_STORE", filepath.Join(e.WorkDir, "store"))
		e.Setenv("BCTL_WORKER_KEY", filepath.Join(e.WorkDir, "worker.key"))
		e.Setenv("BCTL_COMMITTER_KEY", filepath.Join(e.WorkDir, "committer.key"))
		e.Setenv("BCTL_WORKER_LEASE", "3s")
		e.Setenv("BCTL_WORKER_QUEUE_LEASE", "3s")
		e.Setenv("BCTL_WORKER_POLL", "50ms")
	}
}

func params(dir string, setup func(*testscript.Env)) testscript.Params {
	return testscript.Params{
		Dir: filepath.Join("testdata", dir),
		Setup: func(e *testscript.Env) error {
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, ".config"))
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, ".cache"))
			e.Setenv("TZ", "UTC")
			setup(e)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": status, "treeequal": treeEqual, "maketree": makeTree, "await": await, "hold": hold, "disk": disk, "bind": bind, "unbind": unbind, "sql": change, "keeplog": keepLog,
		},
		Condition: func(c string) (bool, error) {
			switch c {
			case "mount":
				return testenv.MayMount(), nil
			case "fuse":
				device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
				if err != nil {
					return false, nil //nolint:nilerr // this machine has no FUSE
				}
				return testenv.MayMount(), device.Close()
			case "userns":
				return exec.Command("unshare", "--user", "--map-root-user", "true").Run() == nil, nil
			case "long":
				return testtarget.Runs(testtarget.Long), nil
			case "capless":
				_, err := exec.LookPath("setpriv")
				return err == nil && os.Geteuid() == 0, nil
			}
			path, ok := strings.CutPrefix(c, "path:")
			if !ok {
				return false, fmt.Errorf("unknown condition %q", c)
			}
			_, err := os.Stat(path)
			return err == nil, nil
		},
	}
}

func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND ARGS…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func treeEqual(ts *testscript.TestScript, neg bool, args []string) {
	differences := treetest.Compare(ts.MkAbs(args[0]), ts.MkAbs(args[1]))
	if neg != (len(differences) > 0) {
		ts.Fatalf("%d differences:\n%s", len(differences), strings.Join(differences[:min(20, len(differences))], "\n"))
	}
}

func makeTree(ts *testscript.TestScript, _ bool, args []string) {
	files, err := strconv.Atoi(args[1])
	ts.Check(err)
	size, err := strconv.Atoi(args[2])
	ts.Check(err)
	for i := range files {
		dir := filepath.Join(ts.MkAbs(args[0]), fmt.Sprintf("d%03d", i/100))
		if i%100 == 0 {
			ts.Check(os.MkdirAll(dir, 0o755))
		}
		line := fmt.Sprintf("file %d of this tree\n", i*7919)
		content := strings.Repeat(line, 1+size/len(line))[:size]
		ts.Check(os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%05d", i)), []byte(content), 0o644))
	}
}

func await(ts *testscript.TestScript, _ bool, args []string) {
	deadline := time.Now().Add(3 * time.Minute)
	for time.Now().Before(deadline) {
		ts.Check(ts.Exec(args[0], args[1:]...))
		if ts.ReadFile("stdout") != "" {
			return
		}
	}
	ts.Fatalf("%q prints nothing", args)
}

func hold(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_RDWR, 0)
	ts.Check(err)
	ts.Check(syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	ts.Defer(func() { f.Close() })
}

func change(ts *testscript.TestScript, _ bool, args []string) {
	db, err := sql.Open("sqlite", ts.MkAbs(args[0]))
	ts.Check(err)
	defer db.Close()
	result, err := db.ExecContext(context.Background(), args[1])
	ts.Check(err)
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		ts.Fatalf("%s changes nothing: %v", args[1], err)
	}
}

// keepLog runs a backup into REPO, and puts a copy of the log of its index, as of the commit of the
// backup, next to it: REPO/index.db-wal.left.
func keepLog(ts *testscript.TestScript, _ bool, args []string) {
	index, commits := filepath.Join(ts.MkAbs(args[0]), "index.db"), filepath.Join(ts.MkAbs(args[0]), "store", "commits")
	before, err := os.ReadDir(commits)
	ts.Check(err)
	db, err := sql.Open("sqlite", index)
	ts.Check(err)
	defer db.Close()
	tx, err := db.BeginTx(context.Background(), nil) // the log is kept while there is a reader
	ts.Check(err)
	defer tx.Rollback()
	var n int
	ts.Check(tx.QueryRowContext(context.Background(), "SELECT count(*) FROM sqlite_schema").Scan(&n))
	kept := make(chan error, 1)
	go func() {
		look := time.NewTicker(time.Millisecond)
		defer look.Stop()
		for range look.C {
			if now, err := os.ReadDir(commits); err != nil || len(now) > len(before) {
				log, err := os.ReadFile(index + "-wal")
				kept <- errors.Join(err, os.WriteFile(index+"-wal.left", log, 0o600), tx.Rollback())
				return
			}
		}
	}()
	ts.Check(ts.Exec("bctl", args[1:]...))
	ts.Check(<-kept)
}

func disk(ts *testscript.TestScript, _ bool, args []string) {
	d := testenv.Disk{Dir: ts.MkAbs(args[0])}
	switch args[1] {
	case "read-only":
		ts.Check(d.SetReadOnly(true))
	case "writable":
		ts.Check(d.SetReadOnly(false))
	case "full":
		ts.Check(d.Fill())
	case "free":
		ts.Check(d.Free())
	default:
		size, err := strconv.ParseInt(args[1], 10, 64)
		ts.Check(err)
		ts.Check(os.MkdirAll(d.Dir, 0o700))
		ts.Check(d.Mount(size))
		ts.Defer(d.Unmount)
	}
}

func bind(ts *testscript.TestScript, _ bool, args []string) {
	unmount, err := testenv.Bind(ts.MkAbs(args[0]), ts.MkAbs(args[1]))
	ts.Check(err)
	ts.Defer(unmount)
}

func unbind(ts *testscript.TestScript, _ bool, args []string) {
	testenv.Disk{Dir: ts.MkAbs(args[0])}.Unmount()
}
