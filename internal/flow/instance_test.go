package flow

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"google.golang.org/protobuf/proto"

	"github.com/bctl/bctl/internal/backup"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// announce announces an instance until stop is called.
func announce(t *testing.T, c *Conn, a Announcement) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Announce(ctx, a) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop
}

func described(i Instance) Announcement {
	return Announcement{Describe: func() Instance { return i }}
}

// keepRoster keeps the roster of a committer that has been running for long.
func keepRoster(t *testing.T, c *Conn, leads bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); c.KeepRoster(ctx, func() bool { return leads }) }()
	t.Cleanup(func() { cancel(); <-ended })
}

// instances asks until the answer is right.
func instances(t *testing.T, c *Conn, what string, right func([]Instance) bool) (found []Instance) {
	t.Helper()
	until(t, what, func(ctx context.Context) bool {
		var err error
		if found, err = c.Instances(ctx); err != nil {
			t.Fatal(err)
		}
		return right(found)
	})
	return found
}

func TestInstancesAreAllThatAreThere(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	keeper, operator := quickly(t, listen(Options{}, s)), connect(t, listen(Options{}, s), ackWait)
	started := time.Unix(1_772_330_645, 0).UTC()
	walker := Instance{
		Role: RoleWalker, Name: "w1", Site: "oslo", Version: "v1", Started: started, Ready: true, Tasks: 3, Stalled: 1, EntriesPerSecond: 12.5,
		ClockKnown: true, ClockAhead: -1500 * time.Millisecond, Schedules: true, MaxRunning: 64, MaxRunningPerFiler: 4,
	}
	if found, err := operator.Instances(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("nobody is there: %+v, %v", found, err)
	}
	keepRoster(t, keeper, true)
	announce(t, keeper, described(Instance{Role: RoleCommitter, Name: "c1", Ready: true, Leads: true}))
	dies := connect(t, listen(Options{}, s), ackWait)
	announce(t, dies, described(walker))
	stopReader := announce(t, connect(t, listen(Options{}, s), ackWait), described(Instance{
		Role: RoleReader, Name: "r1", Site: "oslo", Reason: "store: it is full", Batches: 7, BytesPerSecond: 5, Draining: true,
		Reading: []Reading{{Snapshot: backup.SnapshotID{1}, BatchesDone: 2.5, ReadBytes: 1000}, {Snapshot: backup.SnapshotID{2}}},
	}))
	found := instances(t, operator, "three are there", func(found []Instance) bool { return len(found) == 3 })
	if c := found[0]; c.Name != "c1" || c.Role != RoleCommitter || !c.Leads || c.Site != "" || c.Silent {
		t.Errorf("committer: %+v", c)
	}
	got := found[1]
	if time.Since(got.Heard) > time.Minute || got.ID != dies.instance {
		t.Errorf("walker: %+v", got)
	}
	want := walker
	want.ID, want.Heard = got.ID, got.Heard
	if !reflect.DeepEqual(got, want) {
		t.Errorf("walker: %+v, want %+v", got, want)
	}
	if r := found[2]; r.Name != "r1" || r.Ready || r.Reason != "store: it is full" || r.Batches != 7 || !r.Draining || r.Drained ||
		len(r.Reading) != 2 || r.Reading[0] != (Reading{backup.SnapshotID{1}, 2.5, 1000}) || r.Reading[1].Snapshot != (backup.SnapshotID{2}) {
		t.Errorf("reader: %+v", r)
	}
	stopReader()
	dies.nc.Close() // to the server, the same as a process that dies
	found = instances(t, operator, "one has stopped, and one is lost", func(found []Instance) bool { return len(found) == 2 && found[1].Lost })
	if w := found[1]; w.Name != "w1" || !w.Silent || w.Tasks != 3 {
		t.Errorf("lost: %+v", w)
	}
	announce(t, connect(t, listen(Options{}, s), ackWait), described(walker))
	instances(t, operator, "it is there again", func(found []Instance) bool {
		return len(found) >= 2 && !found[1].Lost || len(found) == 3 && !found[2].Lost
	})
}

// A service that is restarted under its name replaces its silent predecessor.
func TestSuccessorTakesThePlaceOfTheLost(t *testing.T) {
	t.Parallel()
	r := &roster{services: map[who]*Instance{}}
	began := time.Now()
	said := func(id, name string, now time.Time) {
		data, err := marshal(&bctlv1.Service{Instance: id, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		r.hear((&Conn{}).message("bctl.v1.service.walker.oslo", data), now)
	}
	said("A", "w1", began)
	said("B", "w2", began)
	said("C", "w1", began.Add(time.Second)) // two workers that were given one name
	if len(r.services) != 3 {
		t.Errorf("%d services, want 3", len(r.services))
	}
	said("D", "w1", began.Add(time.Minute))
	if len(r.services) != 2 || r.services[who{RoleWalker, "oslo", "D"}] == nil || r.services[who{RoleWalker, "oslo", "B"}] == nil {
		t.Errorf("%v, want D and B", r.services)
	}
	r.forget(began.Add(2 * forgetAfter))
	if len(r.services) != 0 {
		t.Errorf("%d services are remembered for ever", len(r.services))
	}
}

// Services of another fleet at the same NATS are not listed.
func TestInstancesAreOfOneRepository(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	of := func(repository byte) *Conn {
		return connect(t, listen(Options{Repository: backup.RepositoryID{repository}}, s), ackWait)
	}
	announce(t, of(1), described(Instance{Role: RoleWalker, Name: "mine", Site: "oslo"}))
	announce(t, of(2), described(Instance{Role: RoleWalker, Name: "theirs", Site: "oslo"}))
	found := instances(t, of(1), "somebody is there", func(found []Instance) bool { return len(found) > 0 })
	if len(found) != 1 || found[0].Name != "mine" {
		t.Errorf("%+v", found)
	}
}

func TestDrainReachesOneInstance(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	operator, conn, other := connect(t, listen(Options{}, s), ackWait), connect(t, listen(Options{}, s), ackWait), connect(t, listen(Options{}, s), ackWait)
	drains := make(chan string, 64)
	draining := false // used only by Announce's goroutine, except in Drain
	asked := make(chan bool, 64)
	announce(t, conn, Announcement{
		Describe: func() Instance {
			for {
				select {
				case draining = <-asked:
				default:
					return Instance{Role: RoleWalker, Name: "w", Site: "oslo", Draining: draining, Drained: draining}
				}
			}
		},
		Drain: func(undo bool, by string) { asked <- !undo; drains <- by },
	})
	announce(t, other, Announcement{
		Describe: func() Instance { return Instance{Role: RoleWalker, Name: "w", Site: "oslo"} },
		Drain:    func(bool, string) { t.Error("another is drained") },
	})
	found := instances(t, operator, "both are there", func(found []Instance) bool { return len(found) == 2 })
	worker := found[0]
	if worker.ID != conn.instance {
		worker = found[1]
	}
	for _, undo := range []bool{false, false, true} {
		i, err := operator.Drain(t.Context(), &worker, undo, "alice")
		if err != nil || i.Draining == undo || i.ID != conn.instance {
			t.Errorf("undo %v: %+v, %v", undo, i, err)
		}
		if by := receive(t, "request", drains); by != "alice" {
			t.Errorf("by %q", by)
		}
	}
	gone := worker
	gone.ID = "NOBODY"
	if _, err := operator.Drain(t.Context(), &gone, false, ""); !errors.Is(err, backup.ErrNotFound) {
		t.Errorf("of one that has gone: %v", err)
	}
}

// A client that may not ask gets an error, not an empty list.
func TestInstancesNeedPermission(t *testing.T) {
	t.Parallel()
	o := &server.Options{DontListen: true, JetStream: true, StoreDir: t.TempDir(), NoSigs: true}
	allow := func(a Access) *server.Permissions {
		return &server.Permissions{Publish: &server.SubjectPermission{Allow: a.Publish}, Subscribe: &server.SubjectPermission{Allow: a.Subscribe}}
	}
	o.Users = []*server.User{
		{Username: "old", Password: "x", Permissions: allow(Access{Publish: []string{jsAPI + ">"}, Subscribe: []string{"_INBOX.>", progressSubject}})},
		{Username: "operator", Password: "x", Permissions: allow(FollowerAccess("_INBOX"))},
		{Username: "walker", Password: "x", Permissions: allow(WalkerAccess("oslo", "_INBOX"))},
		{Username: "committer", Password: "x", Permissions: allow(CommitterAccess("_INBOX"))},
	}
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(within) {
		t.Fatal("the server is not ready")
	}
	as := func(user string) *Conn {
		c := connect(t, listen(Options{User: user, Password: "x"}, s), ackWait)
		c.opts.Memory = false // so that Close deletes no streams, which it may not
		return c
	}
	committer, walker := as("committer"), as("walker")
	committer.steady.wait = time.Millisecond
	keepRoster(t, committer, true)
	announce(t, committer, described(Instance{Role: RoleCommitter, Name: "c"}))
	drained := make(chan string, 64)
	announce(t, walker, Announcement{
		Describe: func() Instance { return Instance{Role: RoleWalker, Name: "w", Site: "oslo", Draining: true} },
		Drain:    func(_ bool, by string) { drained <- by },
	})
	found := instances(t, as("operator"), "both are there", func(found []Instance) bool { return len(found) == 2 })
	if _, err := as("operator").Drain(t.Context(), &found[1], false, "operator"); err != nil {
		t.Errorf("the operator drains: %v", err)
	}
	receive(t, "drain", drained)
	for _, user := range []string{"old", "walker"} {
		if _, err := as(user).Instances(t.Context()); !errors.Is(err, ErrDenied) {
			t.Errorf("%s asks who is there: %v", user, err)
		}
	}
	for _, user := range []string{"old", "walker", "committer"} {
		if _, err := as(user).Drain(t.Context(), &found[1], false, user); !errors.Is(err, ErrDenied) {
			t.Errorf("%s drains: %v", user, err)
		}
	}
	for len(drained) > 0 {
		if by := <-drained; by != "operator" { // the request may have been repeated
			t.Errorf("%s has drained", by)
		}
	}
	// A walker of oslo is no committer, and no walker of paris.
	for _, c := range []struct {
		role Role
		site string
	}{{RoleCommitter, ""}, {RoleReader, "oslo"}, {RoleWalker, "paris"}} {
		w := as("walker")
		w.announce(Instance{Role: c.role, Site: c.site, Leads: true}, false)
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		if err := w.checkAllowed(ctx, serviceSubjectOf(c.role, c.site)); !errors.Is(err, ErrDenied) {
			t.Errorf("a walker of oslo says that it is a %s at %q: %v", c.role, c.site, err)
		}
	}
}

func TestHostileServices(t *testing.T) {
	t.Parallel()
	good := func() *bctlv1.Service { return &bctlv1.Service{Instance: "A", Name: "w"} }
	for name, spoil := range map[string]func(*bctlv1.Service){
		"no instance":    func(m *bctlv1.Service) { m.Instance = "" },
		"subjects":       func(m *bctlv1.Service) { m.Instance = "*" },
		"long name":      func(m *bctlv1.Service) { m.Name = strings.Repeat("n", maxWorkerBytes+1) },
		"long version":   func(m *bctlv1.Service) { m.Version = strings.Repeat("n", maxVersionBytes+1) },
		"long reason":    func(m *bctlv1.Service) { m.Reason = strings.Repeat("n", maxReasonBytes+1) },
		"less than none": func(m *bctlv1.Service) { m.Stalled = -1 },
		"too many":       func(m *bctlv1.Service) { m.Tasks = math.MaxInt64 },
		"a share that is not a number": func(m *bctlv1.Service) {
			m.Reading = []*bctlv1.Reading{{SnapshotId: make([]byte, 16), BatchesDone: math.NaN()}}
		},
		"less than no bytes": func(m *bctlv1.Service) {
			m.Reading = []*bctlv1.Reading{{SnapshotId: make([]byte, 16), ReadBytes: -1}}
		},
		"a long story":     func(m *bctlv1.Service) { m.HandedBackWhy = strings.Repeat("x", maxWhyBytes+1) },
		"handed back less": func(m *bctlv1.Service) { m.HandedBack = -1 },
		"no snapshot":      func(m *bctlv1.Service) { m.Reading = []*bctlv1.Reading{{ReadBytes: 1}} },
		"many snapshots":   func(m *bctlv1.Service) { m.Reading = make([]*bctlv1.Reading, maxReadings+1) },
		"not a number":     func(m *bctlv1.Service) { m.EntriesPerSecond = math.NaN() },
		"infinity":         func(m *bctlv1.Service) { m.BytesPerSecond = math.Inf(1) },
		"another century":  func(m *bctlv1.Service) { m.ClockAheadSeconds = -1e300 },
		"silent for ever":  func(m *bctlv1.Service) { m.SilentSeconds = 1e18 },
		"heard beforehand": func(m *bctlv1.Service) { m.SilentSeconds = -1 },
		"started before":   func(m *bctlv1.Service) { m.StartedSeconds = -1 },
		"started after":    func(m *bctlv1.Service) { m.StartedSeconds = math.MaxInt64 },
	} {
		m := good()
		spoil(m)
		if i, err := serviceFromWire(m); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, i, err)
		}
	}
	if _, err := serviceFromWire(good()); err != nil {
		t.Error(err)
	}
	if _, _, err := decodeService(make([]byte, maxServiceBytes+1)); !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("too long: %v", err)
	}
	for _, subject := range []string{"", "bctl.v1.service", "bctl.v1.service.", "bctl.v1.service.walker", "bctl.v1.service.walker.", "bctl.v1.service.walker.a.b", "bctl.v1.service.committer.oslo",
		"bctl.v1.service.king.oslo", "bctl.v1.service.committer.", "bctl.v1.service.walker.UPPER"} {
		if role, site, err := roleOf(subject); err == nil {
			t.Errorf("%s: %s at %q", subject, role, site)
		}
	}
	longest := Instance{ID: "A", Name: strings.Repeat("\u00e9", maxWorkerBytes), Version: strings.Repeat("v", 4096), Reason: strings.Repeat("\xff", 1<<20)}
	data, err := marshal(serviceToWire(&longest))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := decodeService(data); err != nil {
		t.Errorf("what is too long to be sent is not cut: %v", err)
	}
}

// A false roster fills no memory, lists no invalid instances, and does not hide services that
// answer.
func TestHostileRoster(t *testing.T) {
	t.Parallel()
	g := &gathering{answered: map[who]Instance{}, missing: map[who]Instance{}}
	now := time.Now()
	hear := func(subject string, m proto.Message) {
		data, err := marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		g.hear((&Conn{}).message(subject, data), now)
	}
	hear("bctl.v1.service.walker.oslo", &bctlv1.Service{Instance: "A", Name: "w"})
	hear(rosterSubject, &bctlv1.Roster{Last: true, Services: []*bctlv1.Service{
		{Instance: "A", Role: "walker", Site: "oslo", Gone: true},
		{Instance: "A", Role: "king", Site: "oslo", Gone: true},
		{Instance: "A", Role: "walker", Site: "a.b", Gone: true},
		{Instance: "B", Role: "walker", Site: "oslo", Name: "x", SilentSeconds: 60},
	}})
	all := g.all()
	if len(all) != 2 || all[0].Lost || all[0].Silent || !all[1].Lost || now.Sub(all[1].Heard) != time.Minute || !g.complete() {
		t.Errorf("%+v, complete %v", all, g.complete())
	}
	hear(rosterSubject, &bctlv1.Roster{Services: []*bctlv1.Service{{Instance: "C", Role: "reader", Site: "oslo", SilentSeconds: 1}}})
	if g.complete() {
		t.Error("who is connected is not waited for")
	}
	hear("bctl.v1.service.reader.oslo", &bctlv1.Service{Instance: "C", Stops: true})
	if !g.complete() || len(g.all()) != 2 {
		t.Errorf("who stops is waited for: %+v", g.all())
	}
}

func TestRateIsOfTheLastSeconds(t *testing.T) {
	t.Parallel()
	var r rate
	now := time.Unix(1_772_330_645, 0)
	for range 20 {
		r.add(now, 100, 1000)
		now = now.Add(time.Second)
	}
	if entries, bytes := r.perSecond(now); entries != 100 || bytes != 1000 {
		t.Errorf("%v entries/s, %v bytes/s, want 100 and 1000", entries, bytes)
	}
	if entries, _ := r.perSecond(now.Add(5 * time.Second)); entries != 50 {
		t.Errorf("five seconds later %v, want 50", entries)
	}
	r.add(now.Add(-time.Hour), 1, 1) // the clock was set back
	if entries, _ := r.perSecond(now.Add(time.Hour)); entries != 0 {
		t.Errorf("an hour later %v, want 0", entries)
	}
}
