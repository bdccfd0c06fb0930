package flow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/bctl/bctl/internal/backup"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// A Role is the kind of a service.
type Role string

// The roles.
const (
	RoleCommitter Role = "committer"
	RoleWalker    Role = "walker"
	RoleReader    Role = "reader"
	RolePruner    Role = "pruner"
	RoleScrubber  Role = "scrubber"
	RoleRestorer  Role = "restorer"
)

// sited reports whether the services of a role belong to a site.
func (r Role) sited() bool { return r == RoleWalker || r == RoleReader }

// ErrDrained is why the context of a worker ends that is drained: its process goes on.
var ErrDrained = errors.New("drained")

// An Instance is a process of a service, as it last described itself. Its strings come from the
// network and may be hostile.
type Instance struct {
	ID      string // of the process: different after each start
	Role    Role
	Name    string // for display
	Site    string // "" for committers, pruners, scrubbers and restorers
	Version string
	Started time.Time

	Ready  bool
	Reason string // why it is not ready
	Leads  bool   // a committer: it is the keeper

	Schedules bool // a committer: it is the leading scheduler
	// A committer's limits of running snapshots, per site and per filer; 0: it is of a version that
	// does not report them.
	MaxRunning, MaxRunningPerFiler int

	Draining bool // it takes no new work
	Drained  bool // and has no work in progress

	// In progress; Stalled counts the tasks and batches that wait for their filer.
	Tasks, Batches, Stalled          int
	EntriesPerSecond, BytesPerSecond float64
	Reading                          []Reading // a worker's work, one element per snapshot

	// HandedBack is how often it has handed work back lately because an attempt failed, and
	// HandedBackWhy is the last error. Only a filer that it does not see, or that fails, causes
	// that.
	HandedBack    int
	HandedBackWhy string
	HandBacks     []HandBack // the same by error; none from services of earlier versions

	// OtherRecipients means that it seals to other recipients than those in force.
	OtherRecipients bool

	ClockKnown bool
	ClockAhead time.Duration // relative to the clock of the database

	Heard  time.Time // by the clock of this machine
	Silent bool      // it did not answer this time
	// Lost means Silent, and either its connection ended without notice or it has been silent for
	// long.
	Lost bool
}

// A Reading is how far a worker is with its work in progress of one snapshot, and what it has done
// for the snapshot of late.
type Reading struct {
	Snapshot    backup.SnapshotID
	BatchesDone float64 // in progress: sum of the shares that are done, each from 0 to 1
	ReadBytes   int64   // in progress
	Recent      Recent
}

// Worker reports whether the service takes work at a site.
func (i *Instance) Worker() bool { return i.Role.sited() }

const (
	askSubject     = "bctl.v1.ask"
	serviceSubject = "bctl.v1.service"
	rosterSubject  = "bctl.v1.roster"
	drainSubject   = "bctl.v1.drain"
)

// serviceSubjectOf returns the subject on which a service describes itself. NATS allows each role
// only its own.
func serviceSubjectOf(role Role, site string) string {
	if !role.sited() {
		return serviceSubject + "." + string(role)
	}
	return serviceSubject + "." + string(role) + "." + backup.SiteName(site)
}

// roleOf is the reverse of serviceSubjectOf.
func roleOf(subject string) (role Role, site string, err error) {
	rest, ok := strings.CutPrefix(subject, serviceSubject+".")
	name, site, atSite := strings.Cut(rest, ".")
	role = Role(name)
	if !ok || checkRole(role, site) != nil || atSite != role.sited() {
		return "", "", fmt.Errorf("subject %q: %w", subject, backup.ErrInvalid)
	}
	return role, site, nil
}

func checkRole(role Role, site string) error {
	switch {
	case (role == RoleCommitter || role == RolePruner || role == RoleScrubber || role == RoleRestorer) && site == "":
		return nil
	case role.sited():
		return backup.CheckSite(site)
	}
	return fmt.Errorf("%q at site %q: %w", role, site, backup.ErrInvalid)
}

// Limits on a service's description of itself, so that no sender can fill a listener's memory.
const (
	maxServiceBytes = 10 << 10
	maxVersionBytes = 128
	maxReasonBytes  = 2 << 10
	maxWhyBytes     = 1 << 10
	maxRate         = 1e15
	maxClockSeconds = 1e10 // three centuries
	maxSilence      = 1e7  // seconds: far longer than the roster remembers
	maxReadings     = 64   // each takes at most 90 bytes
)

func serviceToWire(i *Instance) *bctlv1.Service {
	m := &bctlv1.Service{
		Instance: i.ID, Name: cut(text(i.Name), maxWorkerBytes), Version: cut(text(i.Version), maxVersionBytes),
		Ready: i.Ready, Reason: cut(text(i.Reason), maxReasonBytes), Leads: i.Leads, Draining: i.Draining, Drained: i.Drained,
		Tasks: int64(i.Tasks), Batches: int64(i.Batches), Stalled: int64(i.Stalled),
		EntriesPerSecond: i.EntriesPerSecond, BytesPerSecond: i.BytesPerSecond,
		ClockKnown: i.ClockKnown, ClockAheadSeconds: i.ClockAhead.Seconds(),
		HandedBack: int64(i.HandedBack), HandedBackWhy: cut(text(i.HandedBackWhy), maxWhyBytes),
		Schedules: i.Schedules, MaxRunning: int64(i.MaxRunning), MaxRunningPerFiler: int64(i.MaxRunningPerFiler), HandBacks: handBacksToWire(i.HandBacks),
		OtherRecipients: i.OtherRecipients,
	}
	if !i.Started.IsZero() {
		m.StartedSeconds = i.Started.Unix()
	}
	for n := range i.Reading[:min(len(i.Reading), maxReadings)] {
		r := &i.Reading[n]
		m.Reading = append(m.Reading, &bctlv1.Reading{
			SnapshotId: r.Snapshot[:], BatchesDone: r.BatchesDone, ReadBytes: r.ReadBytes, RecentSeconds: r.Recent.Seconds,
			RecentFiles: r.Recent.Files, RecentBytes: r.Recent.Bytes, RecentBatches: r.Recent.Batches, RecentHeldSeconds: r.Recent.HeldSeconds,
		})
	}
	return m
}

// cut returns at most n bytes of a text, without a partial character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

func serviceFromWire(m *bctlv1.Service) (Instance, error) {
	if id := m.GetInstance(); id == "" || !isInstance(id) {
		return Instance{}, fmt.Errorf("instance %.80q: %w", id, backup.ErrInvalid)
	}
	if len(m.GetName()) > maxWorkerBytes || len(m.GetVersion()) > maxVersionBytes || len(m.GetReason()) > maxReasonBytes || len(m.GetHandedBackWhy()) > maxWhyBytes {
		return Instance{}, fmt.Errorf("announcement of a service is too large: %w", backup.ErrInvalid)
	}
	for _, n := range []int64{
		m.GetTasks(), m.GetBatches(), m.GetStalled(), m.GetHandedBack(), m.GetMaxRunning(), m.GetMaxRunningPerFiler(),
	} {
		if n < 0 || n > math.MaxInt32 {
			return Instance{}, fmt.Errorf("a service reports the number %d: %w", n, backup.ErrInvalid)
		}
	}
	for _, x := range []struct{ value, least, most float64 }{
		{m.GetEntriesPerSecond(), 0, maxRate},
		{m.GetBytesPerSecond(), 0, maxRate},
		{m.GetClockAheadSeconds(), -maxClockSeconds / 2, maxClockSeconds / 2},
		{m.GetSilentSeconds(), 0, maxSilence},
	} {
		if !(x.value >= x.least && x.value <= x.most) { // also refuses NaN
			return Instance{}, fmt.Errorf("%v of a service: %w", x.value, backup.ErrInvalid)
		}
	}
	i := Instance{
		ID: m.GetInstance(), Name: m.GetName(), Version: m.GetVersion(), Ready: m.GetReady(), Reason: m.GetReason(), Leads: m.GetLeads(),
		Draining: m.GetDraining(), Drained: m.GetDrained(), Tasks: int(m.GetTasks()), Batches: int(m.GetBatches()), Stalled: int(m.GetStalled()),
		EntriesPerSecond: m.GetEntriesPerSecond(), BytesPerSecond: m.GetBytesPerSecond(),
		ClockKnown: m.GetClockKnown(), ClockAhead: duration(m.GetClockAheadSeconds()),
		HandedBack: int(m.GetHandedBack()), HandedBackWhy: m.GetHandedBackWhy(),
		Schedules: m.GetSchedules(), MaxRunning: int(m.GetMaxRunning()), MaxRunningPerFiler: int(m.GetMaxRunningPerFiler()),
		OtherRecipients: m.GetOtherRecipients(),
	}
	switch started := m.GetStartedSeconds(); {
	case started < 0 || started > maxClockSeconds:
		return Instance{}, fmt.Errorf("started at second %d: %w", started, backup.ErrInvalid)
	case started > 0:
		i.Started = time.Unix(started, 0).UTC()
	}
	var err error
	if i.HandBacks, err = handBacksFromWire(m.GetHandBacks()); err != nil {
		return i, err
	}
	i.Reading, err = readingsFromWire(m.GetReading())
	return i, err
}

func readingsFromWire(list []*bctlv1.Reading) (readings []Reading, err error) {
	if len(list) > maxReadings {
		return nil, fmt.Errorf("a service reads for %d snapshots: %w", len(list), backup.ErrInvalid)
	}
	for _, m := range list {
		r := Reading{BatchesDone: m.GetBatchesDone(), ReadBytes: m.GetReadBytes(), Recent: Recent{
			m.GetRecentSeconds(), m.GetRecentFiles(), m.GetRecentBytes(), m.GetRecentBatches(), m.GetRecentHeldSeconds(),
		}}
		valid := len(m.GetSnapshotId()) == len(r.Snapshot)
		for _, n := range []int64{r.ReadBytes, r.Recent.Files, r.Recent.Bytes} {
			valid = valid && n >= 0 && n <= backup.MaxCount
		}
		for _, x := range []float64{r.BatchesDone, r.Recent.Seconds, r.Recent.Batches, r.Recent.HeldSeconds} {
			valid = valid && x >= 0 && x <= math.MaxInt32 // also refuses NaN
		}
		if !valid {
			return nil, fmt.Errorf("what a service reads for snapshot %x: %w", m.GetSnapshotId(), backup.ErrInvalid)
		}
		copy(r.Snapshot[:], m.GetSnapshotId())
		readings = append(readings, r)
	}
	return readings, nil
}

func duration(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func decodeService(data []byte) (*bctlv1.Service, Instance, error) {
	var m bctlv1.Service
	if len(data) > maxServiceBytes {
		return nil, Instance{}, fmt.Errorf("%d bytes of a service: %w", len(data), backup.ErrInvalid)
	}
	if err := unmarshal(data, &m); err != nil {
		return nil, Instance{}, err
	}
	i, err := serviceFromWire(&m)
	return &m, i, err
}

// checkAllowed returns ErrDenied if the server has refused one of these subjects to this client.
// The server reports a refusal before it answers a ping.
func (c *Conn) checkAllowed(ctx context.Context, subjects ...string) error {
	if err := c.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("nats %s: %w: %w", c.opts.URL, err, backup.NATSAway)
	}
	refused := c.nc.LastError()
	for _, subject := range subjects {
		if errors.Is(refused, nats.ErrPermissionViolation) && strings.Contains(refused.Error(), `"`+subject+`"`) {
			return fmt.Errorf("nats %s: %s is %w to this client (bctl deploy refresh writes what the servers need)", c.opts.URL, subject, ErrDenied)
		}
	}
	return nil
}

// compareInstances orders instances for display.
func compareInstances(a, b Instance) int {
	order := map[Role]int{RoleCommitter: 0, RoleWalker: 1, RoleReader: 2, RolePruner: 3, RoleScrubber: 4, RoleRestorer: 5}
	return cmp.Or(cmp.Compare(order[a.Role], order[b.Role]), cmp.Compare(a.Site, b.Site), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
}
