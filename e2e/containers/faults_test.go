package containers

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/pkg/stdcopy"
	api "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/e2e/fleet"
)

// After each fault in the middle of a backup, the snapshot commits by itself, restores equal, and
// leaves nothing that is not accounted for.
func TestFaults(t *testing.T) {
	p := up(t)
	p.contained(t)
	p.refuses(t)
	// Each service, and each node of the cluster. With BCTL_E2E_ALL_FAULTS all have every fault.
	const every = "kill pause part"
	for _, victim := range [][2]string{
		{"walker", every}, {"reader", every}, {"committer", every},
		{"nats1", "kill"}, {"nats2", "pause"}, {"nats3", "part"}, {"postgres", "kill part"}, {"versitygw", "part"},
	} {
		service, faults := victim[0], victim[1]
		if os.Getenv("BCTL_E2E_ALL_FAULTS") != "" {
			faults = every
		}
		for _, fault := range strings.Fields(faults) {
			p.survives(t, fault+" "+service, spread, p.all(t, service)[0].fault(fault))
		}
	}
	p.survives(t, "delete all streams", spread, p.deleteStreams)
	p.survives(t, "fail over Postgres", spread, p.failOver)
	p.survives(t, "store away", heavy, p.storeAway)
	t.Run("store slow", p.storeSlow)
	t.Run("store full", p.storeFull)
	p.rollingRestart(t)
	p.rotation(t)
	p.upAgain(t)
	p.doctor(t) // at last: a reader's leaves an object that it may not delete
}

// longerThanLease is how long a container is paused or parted: longer than the
// leases of testdata/override.yaml, so that others do its work, and it comes late with its own.
const longerThanLease = 4 * time.Second

// fault returns what breaks the container, and mends it.
func (c *container) fault(name string) func(*testing.T, *backup) {
	return func(t *testing.T, _ *backup) {
		switch name {
		case "kill":
			c.crash(t)
		case "pause":
			c.pause(t)
			hold(t, longerThanLease)
			c.unpause(t)
		case "part":
			c.part(t)
			hold(t, longerThanLease)
			c.heal(t)
		default:
			t.Fatalf("there is no fault %q", name)
		}
	}
}

// hold lets a fault last.
func hold(t *testing.T, fault time.Duration) {
	t.Helper()
	timer := time.NewTimer(fault)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// survives breaks something in the middle of a backup. The fault is mended, or on its way
// to be, when do returns.
func (p *project) survives(t *testing.T, name string, s shape, do func(*testing.T, *backup)) {
	t.Run(name, func(t *testing.T) {
		p.awaitWhole(t)
		b := p.backup(t, name, s)
		b.awaitSettled(t, 3)
		do(t, b)
		b.judge(t)
	})
}

// deleteStreams deletes the streams with all messages (I2). No identity has that permission, so the
// servers give it to the administrator until the next handout.
func (p *project) deleteStreams(t *testing.T, _ *backup) {
	handout := p.one(t, "handout")
	for _, node := range natsNodes {
		users := "/etc-of/" + node + "/users.conf"
		before := handout.read(t, users)
		after := strings.Replace(before, "users: [\n", "users: [\n  { user: \"CN=admin/1\" }\n", 1)
		if after == before {
			t.Fatalf("%s has no list of users:\n%s", users, before)
		}
		handout.write(t, users, after)
		p.one(t, node).signal(t, "HUP")
	}
	var nc *nats.Conn
	fleet.Await(t, "NATS to let the administrator in", func() (ok bool) {
		var err error
		nc, err = nats.Connect("tls://"+p.nats1, nats.Secure(p.tls(t, "nats1")))
		return err == nil
	})
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	deleted := 0
	names := js.StreamNames(t.Context())
	for name := range names.Name() {
		if err := js.DeleteStream(t.Context(), name); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
		deleted++
	}
	if err := names.Err(); err != nil || deleted < 3 {
		t.Errorf("%d streams deleted: %v", deleted, err)
	}
}

// failOver is what a new primary looks like to clients: all connections end, and none is
// taken for a while.
func (p *project) failOver(t *testing.T, _ *backup) {
	index, postgres := p.index(t), p.one(t, "postgres")
	open := index.Count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename <> current_user")
	if open < 6 {
		t.Errorf("%d connections were open", open)
	}
	if status := postgres.stop(t, 30*time.Second); status != 0 {
		t.Errorf("Postgres ended with %d", status)
	}
	postgres.start(t)
	p.awaitWhole(t)
}

// storeAway takes the store away for longer than its client tries at first.
func (p *project) storeAway(t *testing.T, _ *backup) {
	away := 8 * time.Second
	if long := os.Getenv("BCTL_E2E_STORE_AWAY"); long != "" {
		var err error
		if away, err = time.ParseDuration(long); err != nil {
			t.Fatalf("BCTL_E2E_STORE_AWAY: %v", err)
		}
	}
	store := p.one(t, "versitygw")
	store.stop(t, 0)
	hold(t, away)
	store.start(t)
}

// storeSlow gives the store so little of the processor that an upload takes seconds, from before
// the first one.
func (p *project) storeSlow(t *testing.T) {
	p.awaitWhole(t)
	store := p.one(t, "versitygw")
	limit := func(quotaMicroseconds int64) {
		o := client.ContainerUpdateOptions{Resources: &api.Resources{CPUPeriod: 100_000, CPUQuota: quotaMicroseconds}}
		if _, err := p.docker.ContainerUpdate(t.Context(), store.GetContainerID(), o); err != nil {
			t.Fatal(err)
		}
	}
	limit(1000)
	b := p.backup(t, "store slow", heavy)
	fleet.Await(t, "the store to be held up", func() bool { return b.Ended() || store.throttled(t) })
	if b.Ended() {
		t.Error("the store was not slow")
	}
	hold(t, longerThanLease)
	limit(-1)
	b.judge(t)
}

// ballastStep is more than what storeFull leaves, and less than a pack of a heavy tree.
const ballastStep = 1 << 20

// storeFull leaves no room in the store's file system until the readers have noticed.
func (p *project) storeFull(t *testing.T) {
	p.awaitWhole(t)
	var free unix.Statfs_t
	if err := unix.Statfs(p.store, &free); err != nil {
		t.Fatal(err)
	}
	if free.Blocks*uint64(free.Bsize) != storeBytes {
		t.Skip("the store has no file system of its own: run as root")
	}
	since := time.Now()
	ballast := filepath.Join(p.store, ".ballast")
	file, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for size := int64(0); err == nil; size += ballastStep { // the store may write at the same time
		err = unix.Fallocate(int(file.Fd()), 0, size, ballastStep)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	b := p.backup(t, "store full", heavy)
	fleet.Await(t, "a reader to be refused", func() bool {
		for _, reader := range p.all(t, "reader") {
			if wrote := reader.wrote(t, since); strings.Contains(wrote, `"level":"WARN"`) || strings.Contains(wrote, `"level":"ERROR"`) {
				return true
			}
		}
		if b.Ended() {
			t.Fatal("the backup has ended though the store was full")
		}
		return false
	})
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	b.judge(t)
}

// wrote returns the container's log since a time.
func (c *container) wrote(t *testing.T, since time.Time) string {
	t.Helper()
	o := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Since: fmt.Sprintf("%d.%09d", since.Unix(), since.Nanosecond())}
	logs, err := c.project.docker.ContainerLogs(t.Context(), c.GetContainerID(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	var text strings.Builder
	if _, err := stdcopy.StdCopy(&text, &text, logs); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// rollingRestart stops and starts every container of bctl and of NATS, one at a time,
// under several backups. Each service ends by itself, within its grace.
func (p *project) rollingRestart(t *testing.T) {
	t.Run("rolling restart", func(t *testing.T) {
		p.awaitWhole(t)
		var backups []*backup
		for n := range 3 {
			backups = append(backups, p.backup(t, fmt.Sprintf("rolling restart %d", n), spread))
		}
		for _, service := range []string{"walker", "reader", "committer", "nats1", "nats2", "nats3"} {
			for _, c := range p.all(t, service) {
				started := time.Now()
				if status := c.stop(t, 30*time.Second); status != 0 && !strings.HasPrefix(service, "nats") {
					t.Errorf("%s, told to stop, ended with %d after %v", c, status, time.Since(started))
				}
				c.start(t)
				if strings.HasPrefix(service, "nats") {
					p.awaitWhole(t) // two of three nodes are a quorum, one is not
				}
			}
		}
		for _, b := range backups {
			b.judge(t)
		}
	})
}

// rotation gives everybody a new certificate and key under a backup, and has the old ones refused:
// what docs/deploy.md says of it.
func (p *project) rotation(t *testing.T) {
	p.survives(t, "rotation", spread, func(t *testing.T, _ *backup) {
		deploy := func(command string) {
			p.compose(t, "run", "--rm", "installation", "deploy", command, "/installation/fleet")
			p.compose(t, "run", "--rm", "handout")
			p.compose(t, "kill", "--signal", "HUP", "nats1", "nats2", "nats3", "postgres")
			p.compose(t, "restart", "versitygw")
			p.compose(t, "run", "--rm", "--no-deps", "roles")
			p.compose(t, "run", "--rm", "--no-deps", "bucket")
		}
		deploy("rotate")
		p.compose(t, "restart", "--no-deps", "walker", "reader", "committer")
		deploy("retire")
		if conn, err := pgx.Connect(t.Context(), p.dsn); err == nil {
			t.Errorf("Postgres takes a certificate that is retired (%v)", conn.Close(t.Context()))
		}
		p.readAdmin(t)
	})
}

// upAgain runs docker compose up over what is there: nothing fails, nothing is lost, and the fleet
// goes on.
func (p *project) upAgain(t *testing.T) {
	t.Run("up again", func(t *testing.T) {
		p.takeDown(t, "--timeout", "30")
		p.compose(t, "up", "--detach", "--wait", "--wait-timeout", upSeconds)
		p.awaitWhole(t)
		if n := len(p.client(t).Snapshots()); n == 0 {
			t.Error("no snapshot is left")
		}
		p.backup(t, "up again", spread).judge(t)
	})
}
