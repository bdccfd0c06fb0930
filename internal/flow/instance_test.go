package flow

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"google.golang.org/protobuf/proto"

	"github.com/nats-io/nats.go"

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
	go func() { defer close(ended); c.KeepRoster(ctx, func() bool { return leads }, nil) }()
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
		Reading: []Reading{{Snapshot: backup.SnapshotID{1}, BatchesDone: 2.5, ReadBytes: 1000, Recent: Recent{30.5, 7, 8, 0.5, 9}}, {Snapshot: backup.SnapshotID{2}}},
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
		len(r.Reading) != 2 || r.Reading[0] != (Reading{backup.SnapshotID{1}, 2.5, 1000, Recent{30.5, 7, 8, 0.5, 9}}) || r.Reading[1].Snapshot != (backup.SnapshotID{2}) {
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
	r := &roster{services: map[who]*known{}}
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
	// One of them dies, and another is started before it counts as silent.
	said("E", "w1", began.Add(2*time.Second))
	r.replaceAbsent(map[string]bool{"A": true, "B": true}, began.Add(2*time.Second))
	if len(r.services) != 3 || r.services[who{RoleWalker, "oslo", "A"}] != nil {
		t.Errorf("%v, want B, C and E", r.services)
	}
	said("C", "w1", began.Add(3*time.Second))
	r.replaceAbsent(map[string]bool{"C": true}, began.Add(33*time.Second))
	if len(r.services) != 3 {
		t.Errorf("%v: C did not die before E began", r.services)
	}
	r.replaceAbsent(map[string]bool{"C": true, "B": true}, began.Add(34*time.Second))
	if len(r.services) != 2 || r.services[who{RoleWalker, "oslo", "C"}] != nil {
		t.Errorf("%v, want B, of whose name no other lives, and E", r.services)
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
	s := serverOf(t, &server.Options{DontListen: true},
		allowed("old", Access{Publish: []string{jsAPI + ">"}, Subscribe: []string{"_INBOX.>", progressSubject}}),
		allowed("operator", FollowerAccess("_INBOX")),
		allowed("walker", WalkerAccess("oslo", "_INBOX")),
		allowed("committer", CommitterAccess("_INBOX")))
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
		"many errors":      func(m *bctlv1.Service) { m.HandBacks = make([]*bctlv1.HandBack, maxErrors+3) },
		"a long error": func(m *bctlv1.Service) {
			m.HandBacks = []*bctlv1.HandBack{{Why: strings.Repeat("x", maxErrorBytes+1)}}
		},
		"handed back too often": func(m *bctlv1.Service) { m.HandBacks = []*bctlv1.HandBack{{Times: math.MaxInt64}} },
		"handed back of no snapshot": func(m *bctlv1.Service) {
			m.HandBacks = []*bctlv1.HandBack{{SnapshotIds: [][]byte{{1}}}}
		},
		"handed back of many": func(m *bctlv1.Service) {
			m.HandBacks = []*bctlv1.HandBack{{SnapshotIds: make([][]byte, maxHandBacks+1)}}
		},
		"a rate of NaN": func(m *bctlv1.Service) {
			m.Reading = []*bctlv1.Reading{{SnapshotId: make([]byte, 16), RecentSeconds: math.NaN()}}
		},
		"less than nothing found": func(m *bctlv1.Service) {
			m.Reading = []*bctlv1.Reading{{SnapshotId: make([]byte, 16), RecentFiles: -1}}
		},
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
	var r seconds
	now := time.Unix(1_772_330_645, 0)
	for range 20 {
		r.add(now, &Recent{Files: 100, Bytes: 1000, Batches: 0.5, HeldSeconds: 0.25})
		now = now.Add(time.Second)
	}
	if got, want := r.last(now, rateSeconds), (Recent{rateSeconds, 1000, 10_000, 5, 2.5}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := r.last(now, recentSeconds), (Recent{20, 2000, 20_000, 10, 5}); got != want { // it began 20 seconds ago
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := r.last(now.Add(5*time.Second), rateSeconds); got.Files != 500 {
		t.Errorf("five seconds later %v, want 500", got)
	}
	if at := now.Add(59 * time.Second); r.isOver(at) || !r.isOver(at.Add(2*time.Second)) {
		t.Error("what was done is not forgotten after a minute")
	}
	r.add(now.Add(-time.Hour), &Recent{Files: 1}) // the clock was set back
	if got := r.last(now.Add(time.Hour), recentSeconds); got != (Recent{}) {
		t.Errorf("an hour later %+v", got)
	}
}

// A worker reports what it has done for a snapshot of late also after its work of it has ended, and
// a walker as well as a reader.
func TestReporterTellsTheRecent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := NewReporter(nil, "w")
		job, other := &backup.Job{Snapshot: backup.SnapshotID{1}}, &backup.Job{Snapshot: backup.SnapshotID{2}}
		done := r.Batch(job, 7)
		r.AddRead(job.Snapshot, 7, backup.Progress{BytesDone: 100}, BatchState{ReadBytes: 60, ShareDone: 0.25, HeldSeconds: 1})
		r.AddRead(job.Snapshot, 7, backup.Progress{BytesDone: 100}, BatchState{ReadBytes: 200, ShareDone: 0.75, HeldSeconds: 1.5})
		r.Add(other.Snapshot, backup.Progress{FilesFound: 30})
		done()
		time.Sleep(2 * time.Second) //nolint:forbidigo // the bubble's clock
		r.take()
		var i Instance
		r.InHand(&i)
		want := []Reading{{Snapshot: other.Snapshot, Recent: Recent{Seconds: 2, Files: 30}}, {Snapshot: job.Snapshot, Recent: Recent{2, 0, 200, 0.75, 1.5}}}
		if !slices.Equal(i.Reading, want) {
			t.Errorf("%+v\nwant %+v", i.Reading, want)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		r.take()
		if r.InHand(&i); len(i.Reading) > 0 || len(r.of) > 0 {
			t.Errorf("a minute later: %+v, %d remembered", i.Reading, len(r.of))
		}
	})
}

// In a fleet that starts, the absence of a service is not conclusive: it is asked again until it is
// there. Nobody is waited for where no committer runs, or where the keeper has run for long.
func TestServicesThatHaveJustStartedAreAwaited(t *testing.T) {
	t.Parallel()
	s := inProcess(t)
	operator := connect(t, listen(Options{}, s), ackWait)
	walks := func(all []Instance) bool {
		return slices.ContainsFunc(all, func(i Instance) bool { return i.Role == RoleWalker })
	}
	if all, err := operator.AwaitInstances(t.Context(), walks); err != nil || len(all) > 0 {
		t.Errorf("nobody is there: %+v, %v", all, err)
	}
	keeper := quickly(t, listen(Options{}, s))
	keepRoster(t, keeper, true)
	announce(t, keeper, described(Instance{Role: RoleCommitter, Name: "c1", Leads: true}))
	instances(t, operator, "the committer is there", func(all []Instance) bool { return len(all) == 1 })
	late := connect(t, listen(Options{}, s), ackWait)
	asked := make(chan struct{})
	heard := sync.OnceFunc(func() { close(asked) })
	defer late.listen(askSubject, func(*nats.Msg) { heard() })()
	if err := late.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	found := make(chan []Instance, 1)
	go func() {
		all, err := operator.AwaitInstances(t.Context(), walks)
		if err != nil {
			t.Error(err)
		}
		found <- all
	}()
	<-asked
	announce(t, late, described(Instance{Role: RoleWalker, Name: "w1", Site: "oslo"}))
	if all := <-found; !walks(all) {
		t.Errorf("the walker, which connects late, is missing: %+v", all)
	}
}

func TestFleetStarts(t *testing.T) {
	t.Parallel()
	committer := map[who]Instance{{RoleCommitter, "", "A"}: {}}
	for name, test := range map[string]struct {
		g    gathering
		want bool
	}{
		"nobody is there":                {gathering{}, false},
		"only workers are":               {gathering{answered: map[who]Instance{{RoleWalker, "oslo", "B"}: {}}}, false},
		"no committer leads yet":         {gathering{answered: committer}, true},
		"the keeper has just started":    {gathering{answered: committer, awaited: true, kept: 3 * time.Second}, true},
		"the keeper has listened enough": {gathering{answered: committer, awaited: true, kept: announceEvery}, false},
		"a keeper of an earlier version": {gathering{answered: committer, awaited: true}, false},
	} {
		if got := test.g.starts(); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
