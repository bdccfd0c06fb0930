package flow

import "time"

// The recent work of a worker is counted per second, so that the rates describe the present even if
// a task or batch takes minutes.

const (
	// recentSeconds is the period of a Reading's Recent.
	recentSeconds = 60
	// rateSeconds is the period over which the rates of an Instance are averaged.
	rateSeconds = 10
)

// A Recent is what a worker has done for one snapshot within the last minute.
type Recent struct {
	Seconds float64 // covered: less than a minute if nothing was done before; 0: nothing was done
	Files   int64   // found by a walker
	Bytes   int64   // read from the filer
	Batches float64 // sum of the shares done, each from 0 to 1
	// HeldSeconds is the sum of the times that batches waited because of the filer's read limit.
	HeldSeconds float64
}

func (r *Recent) add(more *Recent) {
	r.Files, r.Bytes, r.Batches, r.HeldSeconds = r.Files+more.Files, r.Bytes+more.Bytes, r.Batches+more.Batches, r.HeldSeconds+more.HeldSeconds
}

// seconds counts the work done in each of the last seconds, including the current, incomplete one.
type seconds struct {
	current int64 // in Unix time
	done    [recentSeconds + 1]Recent
}

func (s *seconds) add(now time.Time, more *Recent) {
	s.advance(now)
	s.at(0).add(more)
}

// at returns what was done a number of seconds ago.
func (s *seconds) at(ago int64) *Recent {
	return &s.done[(s.current-ago+int64(len(s.done)))%int64(len(s.done))]
}

// last returns the work done in the last n complete seconds.
func (s *seconds) last(now time.Time, n int64) (sum Recent) {
	s.advance(now)
	for ago := int64(1); ago <= n; ago++ {
		if done := s.at(ago); *done != (Recent{}) {
			sum.add(done)
			sum.Seconds = float64(ago)
		}
	}
	return sum
}

// isOver reports whether nothing was done within recentSeconds.
func (s *seconds) isOver(now time.Time) bool {
	return s.last(now, recentSeconds).Seconds == 0 && *s.at(0) == Recent{}
}

// advance clears the seconds that are too old. If the clock was set back, counting continues in the
// current second.
func (s *seconds) advance(now time.Time) {
	to := now.Unix()
	for ; s.current < to && to-s.current <= int64(len(s.done)); s.current++ {
		*s.at(-1) = Recent{}
	}
	if s.current < to {
		*s = seconds{current: to}
	}
}
