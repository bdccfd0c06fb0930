//go:build linux

package scale_test

import (
	"sort"
	"sync"
	"time"

	"github.com/bctl/bctl/e2e/slowfs"
)

// meterEvery is how often a meter looks.
const meterEvery = 5 * time.Millisecond

// A meter follows how many stats a filer is asked for.
type meter struct {
	filer *slowfs.FS
	stop  chan struct{}
	done  sync.WaitGroup

	mu      sync.Mutex
	samples []sample
}

type sample struct {
	at    time.Time
	stats int64 // until then
}

func startMeter(filer *slowfs.FS) *meter {
	m := &meter{filer: filer, stop: make(chan struct{})}
	m.look()
	m.done.Go(func() {
		tick := time.NewTicker(meterEvery)
		defer tick.Stop()
		for {
			select {
			case <-m.stop:
				return
			case <-tick.C:
				m.look()
			}
		}
	})
	return m
}

func (m *meter) look() {
	s := sample{time.Now(), m.filer.Counters().Stats}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.samples = append(m.samples, s)
}

// end stops the meter; the last sample is of now.
func (m *meter) end() {
	close(m.stop)
	m.done.Wait()
	m.look()
}

// total is how many stats there were since the start.
func (m *meter) total() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.samples[len(m.samples)-1].stats - m.samples[0].stats
}

// reached returns when the filer had been asked for so many.
func (m *meter) reached(stats int64) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	first := m.samples[0].stats
	i := sort.Search(len(m.samples), func(i int) bool { return m.samples[i].stats-first >= stats })
	return m.samples[min(i, len(m.samples)-1)].at
}

// rate is the stats a second from one time to another.
func (m *meter) rate(from, to time.Time) float64 {
	return float64(m.until(to)-m.until(from)) / to.Sub(from).Seconds()
}

// until returns how many there had been at a time.
func (m *meter) until(at time.Time) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := sort.Search(len(m.samples), func(i int) bool { return m.samples[i].at.After(at) })
	return m.samples[max(i-1, 0)].stats - m.samples[0].stats
}

// A walk is how fast a snapshot was walked.
type walk struct {
	stats     int64
	seconds   float64 // from the first stat to the last
	sustained float64 // stats a second, from a tenth of them to nine tenths
}

func (m *meter) walk() walk {
	n := m.total()
	first, last := m.reached(1), m.reached(n)
	return walk{
		stats: n, seconds: last.Sub(first).Seconds(),
		sustained: float64(n) * 0.8 / m.reached(n*9/10).Sub(m.reached(n/10)).Seconds(),
	}
}
