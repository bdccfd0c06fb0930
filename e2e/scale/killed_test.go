//go:build linux

package scale_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/e2e/slowfs"
)

const (
	// killedStat makes the walk long enough to see the walkers recover.
	killedStat = 5 * time.Millisecond
	// rateWindow is over how long a rate is measured.
	rateWindow = time.Second
	// fullSpeed is what share of the rate before counts as all of it.
	fullSpeed = 0.95
)

// BenchmarkWalkerKilled kills one of four walkers with SIGKILL, and starts it again at once, as a
// supervisor does. The work in hand of the killed walker waits until its lease expires. Until then,
// it occupies slots of its filer.
func BenchmarkWalkerKilled(b *testing.B) {
	for range b.N {
		walkerKilled(b)
	}
}

func walkerKilled(b *testing.B) {
	const walkers = 4
	tree, entries := makeTree(b, *treeDirectories)
	f := newFleet(b)
	// All places of the filer are taken: those of the dead are missed.
	f.Filer("slow", "--walk-tasks", fmt.Sprint(walkers*inFlight))
	filer := slowfs.Mount(b, tree, slowfs.Options{Latency: slowfs.Latency{Stat: killedStat, List: killedStat}, AttrTimeout: time.Second})
	f.Shard("slow", filer.Dir)
	addWalkers(f, walkers)
	for _, reader := range f.Readers {
		reader.Pause()
	}
	m := startMeter(filer)
	backup, _ := f.StartBackupOf("--filer", "slow", "--shard", filer.Dir)
	third := int64(entries) / 3
	fleet.Await(b, "a third of the walk", func() bool { return m.total() >= third })
	killed := time.Now()
	before := m.rate(killed.Add(-rateWindow), killed)
	f.Walkers[0].Kill()
	f.Walkers[0].Restart()
	fleet.Await(b, "the end of the walk", func() bool {
		w := f.Index.Work()
		return w.State != "running" || w.TasksAnnounced == w.TasksSettled
	})
	m.end()
	filer.SetLatency(slowfs.Latency{}) // what is left to do is not measured
	for _, reader := range f.Readers {
		reader.Resume()
	}
	if out := backup.Wait(); out.Status != 0 {
		b.Fatalf("%s", out)
	}
	if *timeline {
		logTimeline(b, m)
	}
	recovered, lowest, ok := m.recovery(killed, before*fullSpeed)
	r := newReport(b, "killed-walker")
	if !ok {
		b.Fatalf("the walk ended before %.0f stats a second were reached again; the least was %.0f", before*fullSpeed, lowest)
	}
	r.say("One of %d walkers was killed (kill -9) and started again at once, while they walked %d entries whose stats take %v. Leases were %d s (the default is 60 s). Before, the rate was %.0f stats per second. Over %v, it fell to %.0f at the lowest. It had reached %.0f%% of the rate before after %.1f s.",
		walkers, entries, killedStat, fleet.LeaseSeconds, before, rateWindow, lowest, 100*fullSpeed, recovered.Seconds())
	b.ReportMetric(recovered.Seconds(), "s-to-full-speed")
	// A report renews a lease, and the dead one's last may have come just before.
	limit := time.Duration(fleet.LeaseSeconds)*time.Second + rateWindow
	r.must(recovered <= limit, "full speed again after %v (at most %v: the lease, and what it takes to see it)", recovered, limit)
	r.write()
}

// recovery returns after how long a second began in which the rate was what it must be again,
// and the least rate of a second before that; ok is false where there was none.
func (m *meter) recovery(from time.Time, rate float64) (after time.Duration, lowest float64, ok bool) {
	lowest = rate
	last := m.reached(m.total())
	for at := from; at.Add(rateWindow).Before(last); at = at.Add(meterEvery) {
		r := m.rate(at, at.Add(rateWindow))
		if r >= rate {
			return at.Sub(from), lowest, true
		}
		lowest = min(lowest, r)
	}
	return 0, lowest, false
}
