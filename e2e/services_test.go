package e2e_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// A round is a backup during which one service of each kind has a fault. The other one of the kind
// is whole, and had its fault in the round before: nobody else would do its work.
type round struct {
	name   string
	faults func(walker, reader, committer *fleet.Service)
	heal   func(walker, reader, committer *fleet.Service)
	// brief faults are healed after two leases, and not when the backup has
	// ended: it may wait for them.
	brief bool
}

func pause(services ...*fleet.Service) {
	for _, s := range services {
		s.Pause()
	}
}

func resume(services ...*fleet.Service) {
	for _, s := range services {
		s.Resume()
	}
}

func heal(services ...*fleet.Service) {
	for _, s := range services {
		s.Heal()
	}
}

// Services hang, are cut off from any of their servers, and come back after
// others have done their work: snapshots complete without them, and they are of use afterwards.
func TestServicesHangAndAreCutOff(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Links: true})
	rounds := []round{
		{
			name:   "all hang",
			faults: func(w, r, c *fleet.Service) { pause(w, r, c) },
			heal:   func(w, r, c *fleet.Service) { resume(w, r, c) },
		},
		{
			name:   "walker without NATS, reader without Postgres, committer without S3",
			faults: func(w, r, c *fleet.Service) { w.NATS.Cut(); r.Postgres.Cut(); c.S3.Cut() },
			heal:   func(w, r, c *fleet.Service) { heal(w, r, c) },
			brief:  true,
		},
		{
			name:   "walker without Postgres, reader without S3, committer without NATS",
			faults: func(w, r, c *fleet.Service) { w.Postgres.Cut(); r.S3.Cut(); c.NATS.Cut() },
			heal:   func(w, r, c *fleet.Service) { heal(w, r, c) },
			brief:  true,
		},
		{
			name:   "walker and reader without NATS, committer without Postgres",
			faults: func(w, r, c *fleet.Service) { w.NATS.Cut(); r.NATS.Cut(); c.Postgres.Cut() },
			heal:   func(w, r, c *fleet.Service) { heal(w, r, c) },
		},
	}
	for i, round := range rounds {
		tree := filepath.Join(t.TempDir(), fmt.Sprintf("round-%d", i))
		generate(t, tree, uint64(50+i), spread)
		settle(t)
		w, r, c := f.Walkers[i%2], f.Readers[i%2], f.Committers[i%2]
		started := time.Now()
		backup, _ := f.StartBackup(tree)
		fleet.Await(t, "work to be settled", func() bool { return f.Index.Work().Settled() > 0 })
		at := f.Index.Work()
		round.faults(w, r, c)
		if round.brief {
			leases := time.NewTimer(2 * fleet.LeaseSeconds * time.Second)
			fleet.Await(t, "two leases, or the end", func() bool { return backup.Ended() || fired(leases) })
			leases.Stop()
		} else {
			backup.Wait()
		}
		took := time.Since(started)
		round.heal(w, r, c)
		orphans := check(t, f, backup.Wait(), tree)
		t.Logf("%s, at %+v: ended before it was healed: %v (%.1f s), %.1f s in all, %d orphans", round.name, at, backup.Ended(), took.Seconds(), time.Since(started).Seconds(), orphans)
	}
}

func fired(timer *time.Timer) bool {
	select {
	case <-timer.C:
		return true
	default:
		return false
	}
}

// A new version takes the place of an old one while a backup runs: first it
// works beside it, and then the old one is told to stop.
func TestRollingRestart(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{})
	for i, kind := range []struct {
		name string
		old  []*fleet.Service
	}{{"walker", f.Walkers}, {"reader", f.Readers}, {"committer", f.Committers}} {
		tree := filepath.Join(t.TempDir(), kind.name)
		generate(t, tree, uint64(60+i), spread)
		settle(t)
		backup, _ := f.StartBackup(tree)
		fleet.Await(t, "work to be settled", func() bool { return f.Index.Work().Settled() > 0 })
		for _, old := range kind.old {
			f.Service(kind.name)
			old.Retire()
		}
		t.Logf("all of kind %s were replaced before the backup had ended: %v", kind.name, !backup.Ended())
		// A result of a service that has stopped may wait for a busy committer for so long that its
		// work is given to another one, which stores it again. That is rare.
		if orphans := check(t, f, backup.Wait(), tree); orphans > 2 {
			t.Errorf("%d orphans, though every %s was told to stop", orphans, kind.name)
		}
	}
}

// Nodes of a NATS cluster may die, one or all; its streams may go.
func TestNATSNodesDie(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f := fleet.New(t, fleet.Options{NATSNodes: 3})
	js := connect(t, f)
	awaitQueues(t, js)
	leader := func(stream string) *testenv.NATSServer {
		s, err := js.Stream(t.Context(), stream)
		if err != nil || s.CachedInfo().Config.Replicas != 3 || s.CachedInfo().Cluster == nil {
			t.Fatalf("%s is no stream of three replicas: %v", stream, err)
		}
		var node int
		if _, err := fmt.Sscanf(s.CachedInfo().Cluster.Leader, "node-%d", &node); err != nil {
			t.Fatalf("%s has no leader: %v", stream, err)
		}
		return f.Nodes[node]
	}
	for i, fault := range []struct {
		name   string
		strike func() (mend func())
	}{
		{"the leader of the walkers' queue dies", func() func() {
			node := leader("BCTL_WALK")
			node.Kill()
			return node.Restart
		}},
		{"all nodes die, and come back", func() func() {
			for _, node := range f.Nodes {
				node.Kill()
			}
			for _, node := range f.Nodes {
				node.Restart()
			}
			return func() {}
		}},
		{"all streams are deleted", func() func() {
			for stream := range queues {
				if err := js.DeleteStream(t.Context(), stream); err != nil {
					t.Error(err)
				}
			}
			return func() {}
		}},
	} {
		tree := filepath.Join(t.TempDir(), fmt.Sprintf("fault-%d", i))
		generate(t, tree, uint64(70+i), spread)
		settle(t)
		started := time.Now()
		backup, _ := f.StartBackup(tree)
		fleet.Await(t, "work to be settled", func() bool { return f.Index.Work().Settled() > 0 })
		at := f.Index.Work()
		mend := fault.strike()
		orphans := check(t, f, backup.Wait(), tree) // before it is mended
		t.Logf("%s, at %+v: %.1f s, %d orphans", fault.name, at, time.Since(started).Seconds(), orphans)
		mend()
		f.Nodes.AwaitLeader(t)
	}
}
