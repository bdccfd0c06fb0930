package commit

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/index"
)

// docs/decisions/0024-dead-leaders.md says when a leader counts as dead.
func TestDeadLeader(t *testing.T) {
	const renewed, there, away, unknown = 'r', 't', 'a', '?'
	for name, test := range map[string]struct {
		each    string // what is seen in each second
		holder  string
		dead    int  // after how many seconds it is dead; 0: never
		another bool // another leads from then on
	}{
		"it dies":                           {each: "ttaaaa", dead: 6},
		"it dies, and has just renewed":     {each: "tratttaaaa", dead: 10},
		"it is cut off, and comes back":     {each: "ttaaataaat"},
		"it is cut off, and renews":         {each: "ttarararararar"},
		"it may not be present":             {each: "aaaaaaaaaaaa"},
		"NATS does not know":                {each: "ttaa?aaa?aaa?"},
		"it has no instance":                {each: "ttaaaaaaa", holder: "committer-1-no.instance"},
		"it is of an earlier version":       {each: "aaaaaaaaa", holder: "committer-1-ABCDEFGH"},
		"it resigns, and another is absent": {each: "ttaaaaaaaaa", another: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, now, until := succession{}, time.Unix(1000, 0), time.Unix(2000, 0)
			holder := "committer-1-ABCDEFGH-INSTANCE"
			if test.holder != "" {
				holder = test.holder
			}
			found, epoch, present := 0, int64(1), true
			for i, is := range test.each {
				now = now.Add(time.Second)
				switch is {
				case renewed: // whether it is present or not
					until = until.Add(time.Second)
				case there, away:
					present = is == there
				}
				if test.another && i == 4 {
					epoch, holder = 2, "committer-2-ABCDEFGH-OTHER"
				}
				instances := s.see([]index.Leader{{Term: index.Term{Role: keeperRole, Epoch: epoch}, Holder: holder, Until: until}})
				if is == unknown {
					s.forget()
					continue
				}
				absent := map[string]bool{}
				for _, instance := range instances {
					absent[instance] = !present
				}
				for _, l := range s.looked(absent, now) {
					if found == 0 {
						found = i + 1
					}
					if l.Epoch != epoch || l.Holder != holder {
						t.Errorf("dead: %+v", l)
					}
				}
			}
			if found != test.dead {
				t.Errorf("dead after %d seconds, want %d (0: never)", found, test.dead)
			}
			if s.see(nil); len(s) != 0 {
				t.Errorf("nobody leads; remembered: %d", len(s))
			}
		})
	}
}

// A lookedIndex counts how often it was asked for the leaders.
type lookedIndex struct {
	index.Index
	looks atomic.Int64
}

func (x *lookedIndex) Leaders(ctx context.Context) ([]index.Leader, error) {
	x.looks.Add(1)
	return x.Index.Leaders(ctx)
}

// The keeper's process dies, which also leads as a scheduler: another committer leads long before
// the terms run out.
func TestDeadLeaderIsReplaced(t *testing.T) {
	f := newFixture(t)
	f.queue()
	conn := value(flow.Connect(flow.Options{InProcess: f.nats, Memory: true}))(f)
	announcing, stop := context.WithCancel(f.ctx)
	announced := make(chan struct{})
	go func() {
		defer close(announced)
		conn.Announce(announcing, flow.Announcement{Describe: func() flow.Instance { return flow.Instance{} }})
	}()
	f.Cleanup(func() { stop(); <-announced; conn.Close() })
	for _, role := range []string{keeperRole, "scheduler"} {
		if _, ok, err := f.idx.Lead(f.ctx, role, conn.Holder("dies"), 24*time.Hour); !ok || err != nil {
			t.Fatalf("%v, %v", ok, err)
		}
	}
	vacant := make(chan struct{}, 10)
	looked := &lookedIndex{Index: f.idx}
	s, _ := f.start(looked, Options{Worker: "lives", OnVacant: func() { vacant <- struct{}{} }})
	// NATS does not tell who is there before connections have lasted for a while. The second look
	// from then on begins after the first has seen that the leader is there.
	f.until(func() bool { _, err := f.conn.Absent(f.ctx, nil); return err == nil })
	looks := looked.looks.Load()
	f.until(func() bool { return looked.looks.Load() >= looks+2 })
	if s.leading() {
		t.Fatal("two lead")
	}
	stop()
	<-announced
	conn.Close()
	f.until(s.leading)
	<-vacant
	f.until(func() bool {
		leaders := value(f.idx.Leaders(f.ctx))(f)
		return !slices.ContainsFunc(leaders, func(l index.Leader) bool { return l.Role == "scheduler" })
	})
}
