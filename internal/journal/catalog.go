package journal

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

// A Catalog has what operators have set: filers, shards, policies, which snapshots are forgotten or
// bad, what is on hold, the brake, and the limits of scrubs.
type Catalog struct {
	Filers   []CatalogFiler
	Shards   []CatalogShard
	Policies []CatalogPolicy
	// Forgotten are the forgotten snapshots that are not removed yet. Some have a commit record,
	// because a chain of segments goes through them.
	Forgotten []backup.SnapshotID
	Bad       []CatalogBad
	Holds     []CatalogHold
	Brake     *CatalogBrake // nil: it is not known
	Scrub     *CatalogScrub // likewise
}

// A CatalogHeader is the header of a catalog. The catalog with the greatest Sequence is the current
// one.
type CatalogHeader struct {
	Version  int       `json:"version"`
	Sequence int64     `json:"sequence"`
	Written  time.Time `json:"written"`
	Filers   int       `json:"filers"`
	Shards   int       `json:"shards"`
	Policies int       `json:"policies"`
	// Forgotten is the number of these records; earlier versions of bctl wrote none.
	Forgotten int `json:"forgotten,omitempty"`
	Holds     int `json:"holds,omitempty"` // likewise
	Bad       int `json:"bad,omitempty"`   // likewise
}

// A CatalogBad is a snapshot that an operator has marked as bad.
type CatalogBad struct {
	Snapshot string `json:"snapshot"` // id
	Reason   string `json:"reason"`
}

// A CatalogBrake has the settings of the brake.
type CatalogBrake struct {
	Snapshots    int   `json:"snapshots_percent"`
	MinSnapshots int   `json:"min_snapshots"`
	Bytes        int   `json:"bytes_percent"`
	MinBytes     int64 `json:"min_bytes"`
	Operators    int   `json:"operators"`
}

// A CatalogScrub has the settings of scrubs. Prices and Spend are in billionths of a currency.
type CatalogScrub struct {
	WithinSeconds int64 `json:"within_seconds"`
	Bytes         int64 `json:"bytes_per_day,omitempty"` // 0: no limit; likewise Requests and Spend
	Requests      int64 `json:"requests_per_day,omitempty"`
	PriceRequests int64 `json:"price_per_1000_requests,omitempty"`
	PriceBytes    int64 `json:"price_per_gib,omitempty"`
	Spend         int64 `json:"cost_per_day,omitempty"`
}

// A CatalogFiler is a filer.
type CatalogFiler struct {
	Name               string            `json:"name"`
	Site               string            `json:"site"`
	WalkTasks          int               `json:"walk_tasks,omitempty"`
	ReadBatches        int               `json:"read_batches,omitempty"`
	ReadBytesPerSecond int64             `json:"read_bytes_per_second,omitempty"`
	FloorPercent       int               `json:"floor_percent,omitempty"`
	Compare            string            `json:"compare"`
	Selection          backup.Selection  `json:"selection"`
	Labels             map[string]string `json:"labels,omitempty"`
	Retired            bool              `json:"retired,omitempty"`
}

// A CatalogShard is a shard.
type CatalogShard struct {
	Key       string           `json:"key"` // hexadecimal
	Filer     string           `json:"filer"`
	Name      string           `json:"name"`
	Source    string           `json:"source"`
	Snapshots string           `json:"snapshots,omitempty"`
	Selection backup.Selection `json:"selection"`
	Retired   bool             `json:"retired,omitempty"`
}

// A CatalogPolicy is a policy. Durations are in seconds.
type CatalogPolicy struct {
	Name                 string            `json:"name"`
	Labels               map[string]string `json:"labels,omitempty"`
	Paused               bool              `json:"paused,omitempty"`
	Schedule             string            `json:"schedule"`
	TimeZone             string            `json:"time_zone,omitempty"`
	JitterSeconds        float64           `json:"jitter_seconds,omitempty"`
	Windows              []string          `json:"windows,omitempty"`
	RecoveryPointSeconds float64           `json:"recovery_point_seconds,omitempty"`
	FloorPercent         int               `json:"floor_percent,omitempty"`
	DrillSeconds         float64           `json:"drill_seconds,omitempty"`
	Retention            CatalogRetention  `json:"retention"`
	Selection            backup.Selection  `json:"selection"`
}

// A CatalogRetention is a backup.Retention. Periods are texts ("1y5m7d2h").
type CatalogRetention struct {
	Style   backup.Style `json:"style,omitempty"`
	Last    backup.Count `json:"last,omitempty"`
	Hourly  backup.Count `json:"hourly,omitempty"`
	Daily   backup.Count `json:"daily,omitempty"`
	Weekly  backup.Count `json:"weekly,omitempty"`
	Monthly backup.Count `json:"monthly,omitempty"`
	Yearly  backup.Count `json:"yearly,omitempty"`
	// WithinSeconds is Within if that period has a fixed length, in days and less than 24 hours.
	// Within is then empty.
	WithinSeconds float64    `json:"within_seconds,omitempty"`
	Within        string     `json:"within,omitempty"`
	WithinHourly  string     `json:"within_hourly,omitempty"`
	WithinDaily   string     `json:"within_daily,omitempty"`
	WithinWeekly  string     `json:"within_weekly,omitempty"`
	WithinMonthly string     `json:"within_monthly,omitempty"`
	WithinYearly  string     `json:"within_yearly,omitempty"`
	Tags          [][]string `json:"tags,omitempty"`
}

func retentionOf(r *backup.Retention) CatalogRetention {
	text := func(p backup.Period) string {
		if p.IsZero() {
			return ""
		}
		return p.String()
	}
	c := CatalogRetention{
		Style: r.Style, Last: r.Last, Hourly: r.Hourly, Daily: r.Daily, Weekly: r.Weekly, Monthly: r.Monthly, Yearly: r.Yearly,
		Within: text(r.Within), WithinHourly: text(r.WithinHourly), WithinDaily: text(r.WithinDaily), WithinWeekly: text(r.WithinWeekly),
		WithinMonthly: text(r.WithinMonthly), WithinYearly: text(r.WithinYearly), Tags: r.Tags,
	}
	if d, ok := r.Within.Duration(); ok {
		c.WithinSeconds, c.Within = d.Seconds(), ""
	}
	return c
}

// FilerOf converts f to its form in the catalog.
func FilerOf(f *backup.Filer) CatalogFiler {
	return CatalogFiler{
		Name: f.Name, Site: f.Site, WalkTasks: f.Limits.WalkTasks, ReadBatches: f.Limits.ReadBatches,
		ReadBytesPerSecond: f.Limits.ReadBytesPerSecond, FloorPercent: f.Limits.Floor, Compare: f.Compare.String(), Selection: f.Selection, Labels: f.Labels, Retired: f.Retired,
	}
}

// ShardOf converts s, a shard of the filer with the given name, to its form in the catalog.
func ShardOf(s *backup.Shard, filer string) CatalogShard {
	return CatalogShard{
		Key: s.Key.String(), Filer: filer, Name: s.Name, Source: s.Source, Snapshots: s.Snapshots, Selection: s.Selection, Retired: s.Retired,
	}
}

// PolicyOf converts p to its form in the catalog.
func PolicyOf(p *backup.Policy) CatalogPolicy {
	return CatalogPolicy{
		Name: p.Name, Labels: p.Labels, Paused: p.Paused, Schedule: p.Schedule, TimeZone: p.TimeZone, JitterSeconds: p.Jitter.Seconds(),
		Windows: p.Windows, RecoveryPointSeconds: p.RecoveryPoint.Seconds(), FloorPercent: p.Floor, Selection: p.Selection,
		DrillSeconds: p.Drill.Seconds(), Retention: retentionOf(&p.Retention),
	}
}

// A catalogLine is one line of a catalog. Exactly one of its fields is set.
type catalogLine struct {
	Filer  *CatalogFiler  `json:"filer,omitempty"`
	Shard  *CatalogShard  `json:"shard,omitempty"`
	Policy *CatalogPolicy `json:"policy,omitempty"`
	// Forgotten is the id of a snapshot.
	Forgotten string        `json:"forgotten,omitempty"`
	Bad       *CatalogBad   `json:"bad,omitempty"`
	Hold      *CatalogHold  `json:"hold,omitempty"`
	Brake     *CatalogBrake `json:"brake,omitempty"`
	Scrub     *CatalogScrub `json:"scrub,omitempty"`
}

// Lines returns the catalog as lines of JSON, one per filer, shard, policy, forgotten snapshot, bad
// snapshot and hold, and one each of the brake and of scrubs. The same catalog in the same order
// gives the same lines.
func (c *Catalog) Lines() ([]byte, error) {
	var lines []catalogLine
	for i := range c.Filers {
		lines = append(lines, catalogLine{Filer: &c.Filers[i]})
	}
	for i := range c.Shards {
		lines = append(lines, catalogLine{Shard: &c.Shards[i]})
	}
	for i := range c.Policies {
		lines = append(lines, catalogLine{Policy: &c.Policies[i]})
	}
	for _, id := range c.Forgotten {
		lines = append(lines, catalogLine{Forgotten: id.String()})
	}
	for i := range c.Bad {
		lines = append(lines, catalogLine{Bad: &c.Bad[i]})
	}
	for i := range c.Holds {
		lines = append(lines, catalogLine{Hold: &c.Holds[i]})
	}
	if c.Brake != nil {
		lines = append(lines, catalogLine{Brake: c.Brake})
	}
	if c.Scrub != nil {
		lines = append(lines, catalogLine{Scrub: c.Scrub})
	}
	var b []byte
	for i := range lines {
		text, err := json.Marshal(&lines[i])
		if err != nil {
			return nil, err
		}
		b = append(append(b, text...), '\n')
	}
	return b, nil
}

// EncodeCatalog seals and signs a catalog. The object's name is store.CatalogName. Sequences begin
// with 1.
func EncodeCatalog(keys Keys, sequence int64, written time.Time, c *Catalog) ([]byte, error) {
	if sequence < 1 {
		return nil, fmt.Errorf("catalog %d: %w", sequence, backup.ErrInvalid)
	}
	lines, err := c.Lines()
	if err != nil {
		return nil, err
	}
	o, err := newObject(keys, pack.KindCatalog)
	if err != nil {
		return nil, err
	}
	for len(lines) > 0 {
		n := 0
		for n < min(len(lines), frameBytes) { // a frame holds whole lines
			end := n
			for lines[end] != '\n' {
				end++
			}
			n = end + 1
		}
		o.raw = append(o.raw, lines[:n]...)
		o.ends = append(o.ends, len(o.raw))
		lines = lines[n:]
	}
	header := CatalogHeader{
		Version: version, Sequence: sequence, Written: written.UTC(), Filers: len(c.Filers), Shards: len(c.Shards), Policies: len(c.Policies), Forgotten: len(c.Forgotten),
		Holds: len(c.Holds), Bad: len(c.Bad),
	}
	return o.finish(header, catalogID(sequence), store.CatalogName(sequence))
}

// catalogID returns the pack id of a catalog.
func catalogID(sequence int64) (id backup.PackID) {
	binary.BigEndian.PutUint64(id[8:], uint64(sequence))
	return id
}

// OpenCatalog opens the catalog with the given sequence. data is the whole object.
func OpenCatalog(data []byte, sequence int64, trust Trust) (h CatalogHeader, c *Catalog, err error) {
	name := store.CatalogName(sequence)
	o, err := open(data, pack.KindCatalog, name, catalogID(sequence), trust, &h)
	if err != nil {
		return h, nil, err
	}
	c = &Catalog{}
	for text, err := range o.lines() {
		var line catalogLine
		if err == nil {
			err = decodeLine(text, &line)
		}
		if err == nil {
			err = c.add(&line)
		}
		if err != nil {
			return h, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if h.Sequence != sequence || len(c.Filers) != h.Filers || len(c.Shards) != h.Shards || len(c.Policies) != h.Policies || len(c.Forgotten) != h.Forgotten || len(c.Holds) != h.Holds || len(c.Bad) != h.Bad {
		return h, nil, fmt.Errorf("%s: its content does not match its header: %w", name, backup.ErrCorrupt)
	}
	return h, c, nil
}

// add adds what a line has. Lines of later versions have nothing that is known.
func (c *Catalog) add(line *catalogLine) error {
	switch {
	case line.Filer != nil:
		c.Filers = append(c.Filers, *line.Filer)
	case line.Shard != nil:
		c.Shards = append(c.Shards, *line.Shard)
	case line.Policy != nil:
		c.Policies = append(c.Policies, *line.Policy)
	case line.Forgotten != "":
		id, err := backup.ParseSnapshotID(line.Forgotten)
		if err != nil {
			return err
		}
		c.Forgotten = append(c.Forgotten, id)
	case line.Bad != nil:
		if _, err := backup.ParseSnapshotID(line.Bad.Snapshot); err != nil {
			return err
		}
		c.Bad = append(c.Bad, *line.Bad)
	case line.Hold != nil:
		if err := line.Hold.check(); err != nil {
			return err
		}
		c.Holds = append(c.Holds, *line.Hold)
	case line.Brake != nil:
		c.Brake = line.Brake
	case line.Scrub != nil:
		c.Scrub = line.Scrub
	}
	return nil
}
