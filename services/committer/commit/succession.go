package commit

import (
	"context"
	"time"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/loop"
)

// A leader whose process dies leads until its term has run out, unless another committer ends the
// term. It does so if the leader is not connected to NATS and has not renewed its term for
// vacantAfter. If it is wrong, the former leader finds at its next renewal that its term has ended,
// and what it writes until then is refused by its epoch, or safe to repeat. See
// docs/decisions/0024-dead-leaders.md.

const (
	successionEvery = time.Second
	// vacantAfter is longer than absentFor, after which a connection that was interrupted is
	// restored, and than the interval at which a keeper renews its term.
	vacantAfter = 3 * time.Second
)

// A succession is what this committer has seen of the leaders, by role.
type succession map[string]*seenLeader

type seenLeader struct {
	index.Leader
	present bool      // it was seen to be connected to NATS
	said    bool      // that it was is logged
	absent  time.Time // since when it is absent, and has not renewed its term; zero: it is not
}

// successionLoop ends the terms of leaders whose processes have died, until ctx is done.
func (s *Service) successionLoop(ctx context.Context) {
	seen := succession{}
	loop.Every(ctx, successionEvery, func() {
		dead, err := s.deadLeaders(ctx, seen)
		if err != nil { // other loops report that the index or NATS does not answer
			seen.forget()
			return
		}
		for _, l := range seen {
			if l.present && !l.said {
				l.said = true
				s.log.Debug("leader seen: if it dies, its term will be ended", "role", l.Role, "epoch", l.Epoch, "holder", l.Holder)
			}
		}
		for _, l := range dead {
			s.depose(ctx, l)
		}
	})
}

func (s *Service) deadLeaders(ctx context.Context, seen succession) ([]index.Leader, error) {
	leaders, err := s.Index.Leaders(ctx)
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	absent, err := s.Conn.Absent(asking, seen.see(leaders))
	if err != nil {
		return nil, err
	}
	return seen.looked(absent, time.Now()), nil
}

// depose ends the term of a leader that is dead, so that another committer can lead. If that fails,
// it is repeated at the next look.
func (s *Service) depose(ctx context.Context, l index.Leader) {
	if err := s.Index.Resign(ctx, l.Term); err != nil {
		return
	}
	s.log.Warn("leader lost: it is not connected to NATS and does not renew its term; another committer takes over", "role", l.Role, "epoch", l.Epoch, "lost_worker", flow.WorkerOf(l.Holder))
	loop.Wake(s.vacant)
	s.opts.OnVacant()
}

// see records the leaders, and returns the instances to look for.
func (s succession) see(leaders []index.Leader) (instances []string) {
	roles := map[string]bool{}
	for _, l := range leaders {
		roles[l.Role] = true
		switch seen := s[l.Role]; {
		case seen == nil || seen.Term != l.Term:
			s[l.Role] = &seenLeader{Leader: l}
		case !seen.Until.Equal(l.Until): // it has renewed its term
			seen.Leader, seen.absent = l, time.Time{}
		}
		if instance := flow.InstanceOf(l.Holder); instance != "" {
			instances = append(instances, instance)
		}
	}
	for role := range s {
		if !roles[role] {
			delete(s, role)
		}
	}
	return instances
}

// looked records which instances are absent, and returns the leaders that are dead. A leader that
// was never present may lack the permission to be: its absence is not conclusive.
func (s succession) looked(absent map[string]bool, now time.Time) (dead []index.Leader) {
	for _, l := range s {
		switch {
		case !absent[flow.InstanceOf(l.Holder)]:
			l.present, l.absent = true, time.Time{}
		case !l.present:
		case l.absent.IsZero():
			l.absent = now
		case now.Sub(l.absent) >= vacantAfter:
			dead = append(dead, l.Leader)
		}
	}
	return dead
}

// forget restarts all periods of absence.
func (s succession) forget() {
	for _, l := range s {
		l.absent = time.Time{}
	}
}
