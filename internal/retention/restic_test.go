package retention

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// resticDecisions are written by testdata/generate.
type resticDecisions struct {
	Restic string
	Rules  [][]string
	Groups []struct {
		Zone, Kind string
		Snapshots  []struct {
			Time time.Time
			Tags []string
		}
		// Kept has the snapshots that each set of rules keeps; null: restic refuses to forget all.
		Kept [][]struct {
			Index   int      `json:"i"`
			Matches []string `json:"m"`
		}
	}
}

func readDecisions(t *testing.T) (d resticDecisions) {
	t.Helper()
	file, err := os.Open("testdata/restic.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(r).Decode(&d); err != nil {
		t.Fatal(err)
	}
	return d
}

// id returns an id for tests.
func id(n int) (id backup.SnapshotID) {
	binary.BigEndian.PutUint64(id[:], uint64(n))
	return id
}

// parseRules reads flags as restic has them.
func parseRules(t *testing.T, args []string) (r backup.Retention) {
	t.Helper()
	counts := map[string]*backup.Count{
		"last": &r.Last, "hourly": &r.Hourly, "daily": &r.Daily, "weekly": &r.Weekly, "monthly": &r.Monthly, "yearly": &r.Yearly,
	}
	periods := map[string]*backup.Period{
		"within": &r.Within, "within-hourly": &r.WithinHourly, "within-daily": &r.WithinDaily, "within-weekly": &r.WithinWeekly,
		"within-monthly": &r.WithinMonthly, "within-yearly": &r.WithinYearly,
	}
	for ; len(args) > 0; args = args[2:] {
		name := strings.TrimPrefix(args[0], "--keep-")
		var err error
		if counts[name] != nil {
			*counts[name], err = backup.ParseCount(args[1])
		} else if periods[name] != nil {
			*periods[name], err = backup.ParsePeriod(args[1])
		} else {
			var list []string
			list, err = backup.ParseTags(args[1])
			r.Tags = append(r.Tags, list)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// byRule are the causes of rules that restic has, too.
func byRule(r Reason) bool { return r.Cause == ByCount || r.Cause == ByPeriod || r.Cause == ByTags }

// line describes why a snapshot is kept, or returns "" if no rule keeps it.
func (d *Decision) line() string {
	var words []string
	for _, r := range d.Reasons {
		if byRule(r) {
			words = append(words, r.String())
		}
	}
	if len(words) == 0 {
		return ""
	}
	return fmt.Sprint(d.Snapshot.Time.Format(time.RFC3339Nano), " ", words)
}

// Decisions and reasons are those of restic.
func TestDecisionsAreThoseOfRestic(t *testing.T) {
	expected := readDecisions(t)
	if !strings.HasPrefix(expected.Restic, "restic 0.19.1 ") {
		t.Errorf("the decisions are those of %s", expected.Restic)
	}
	cases, decided := 0, 0
	for _, g := range expected.Groups {
		zone, err := time.LoadLocation(g.Zone)
		if err != nil {
			t.Fatal(err)
		}
		var snapshots []Snapshot
		for n, s := range g.Snapshots {
			snapshots = append(snapshots, Snapshot{ID: id(n), Time: s.Time, Tags: s.Tags, Good: true})
		}
		for n, kept := range g.Kept {
			rules := parseRules(t, expected.Rules[n])
			decisions, err := Decide(rules, snapshots, Options{Zone: zone, Now: time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC), Retired: true})
			if err != nil {
				t.Fatal(err)
			}
			// restic leaves the order of equal times to chance.
			var got, want []string
			for i := range decisions {
				if line := decisions[i].line(); line != "" {
					got = append(got, line)
				}
			}
			for _, k := range kept {
				want = append(want, fmt.Sprint(g.Snapshots[k.Index].Time.Format(time.RFC3339Nano), " ", k.Matches))
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s, %s, %v:\ngot\n%s\nwant\n%s", g.Zone, g.Kind, expected.Rules[n], strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			cases, decided = cases+1, decided+len(decisions)
		}
	}
	if cases < 12000 {
		t.Errorf("only %d cases", cases)
	}
	t.Logf("%d cases, %d decisions", cases, decided)
}
