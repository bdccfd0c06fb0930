package cli

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// textFlags are the flags with names, paths and similar values. A flag that is in no list fails the
// test, so that each new flag is checked for being a number.
var textFlags = strings.Fields(`config mirror committer pruner cpuprofile memprofile trace progress repo worker-key committer-key identity index store nats log-level log-format
	exclude exclude-file exclude-if-present files-from stdin-filename include filer shard label tag recipient signer as source target overwrite site compare snapshots state
	by parquet path schedule time-zone window keep-tag object-lock name postgres store-endpoint store-kind store-region reason file role operator policy help png output dir level temp-dir replace owner type archive map-owner map-group names-from map`)

// numbers are invalid values of flags that are numbers, sizes or times.
var numbers = map[string][]string{
	"concurrency": {"1025", "1000000000"}, "limit": {"9999999999"}, "latest": {"9999999999"}, "walk-tasks": {"65537", "9999999999"}, "read-batches": {"65537"},
	"read-rate": {"-1MB/s", "99999EB", "50 apples", "0.1"}, "exclude-larger-than": {"-1MB", "99999EB", "NaN", "0.5"},
	"price-per-gb-month":      {"0", "NaN", "Inf", "1e9", "2 cents"},
	"price-per-1000-requests": {"NaN", "1e3", "0.0000000001", "9999999999999"}, "price-per-gib": {"2 cents"}, "max-cost": {"-0.5"},
	"max-unused": {"-1%", "101%", "NaN", "1%%", "ten"},
	"bytes":      {"-1%", "101%", "1.5%"}, "min-bytes": {"-1MB", "0.5"}, "min-snapshots": {"0", "1000001"}, "operators": {"0", "11"},
	"packs": {"0", "9999999999"}, "shares": {"1", "51"}, "needed": {"1", "51"},
	"max-bytes": {"-1MB", "99999EB"}, "max-requests": {"9999999999"}, "proven-within": {"-26h", "1000000h"},
	"files": {"100001", "9999999999"}, "max-size": {"0", "-1MB", "99999EB", "0.5"}, "seed": {"0", "1.5", "18446744073709551616"}, "drill": {"-1d", "sometimes", "1ns"},
	"max-memory": {"-1MB", "99999EB", "1MiB", "0"},
	"keep-last":  nil, "keep-hourly": nil, "keep-daily": nil, "keep-weekly": nil, "keep-monthly": nil, "keep-yearly": {"9999999999"},
	"jitter": {"1ns", "-2h", "-1d", "1d-2h", "36601d", "99999d", "1000000h", "36600d2562047h"}, "recovery-point": {"-26h", "1000000h"}, "keep-within": {"-14d", "soon", "90s", "1h30m", "1w", "1001y", "14", "1d1d"},
	"keep-within-hourly": nil, "keep-within-daily": nil, "keep-within-weekly": nil, "keep-within-monthly": nil, "keep-within-yearly": nil, "keep-style": {"borg"},
	"larger": {"-1MB", "99999EB", "0.5"}, "smaller": {"99999EB"}, "until": {"yesterday", "-1d"}, "newer": {"-24h", "1000000h", "yesterday"}, "older": {"2006-13-01"},
	"since": {"-24h", "-1d", "1000000h", "yesterday", "2006-13-01"}, "days": {"0", "3651"}, "floor": {"101%", "5000"}, "read-data": {"0", "0%", "101%", "NaN"},
	"keep-deleted": {"-30d", "1000000h", "for ever"}, "allow-delete": {"-1MB", "99999EB", "0.5"}, "as-of": {"-24h", "1000000h", "yesterday"},
	"parity": {"20", "2+3", "020+2"}, "depth": {"1001"}, "accept-loss": {"9999999999"},
}

func TestNumbers(t *testing.T) {
	each := func(visit func(cmd *cobra.Command, f *pflag.Flag)) {
		a := &app{out: io.Discard, term: &terminal{}}
		for queue := []*cobra.Command{a.root()}; len(queue) > 0; queue = queue[1:] {
			cmd := queue[0]
			queue = append(queue, cmd.Commands()...)
			cmd.Flags().VisitAll(func(f *pflag.Flag) { visit(cmd, f) })
			cmd.PersistentFlags().VisitAll(func(f *pflag.Flag) { visit(cmd, f) })
		}
	}
	seen := map[string]bool{}
	each(func(cmd *cobra.Command, f *pflag.Flag) {
		if f.Value.Type() == "bool" || slices.Contains(textFlags, f.Name) {
			return
		}
		wrong, is := numbers[f.Name]
		if !is {
			t.Errorf("%s --%s: is it a number?", cmd.CommandPath(), f.Name)
		}
		seen[f.Name] = true
		for _, value := range append([]string{"-3", "-1", "", "x", "3 x", "-9223372036854775809"}, wrong...) {
			if (f.Name == "since" || f.Name == "as-of" || f.Name == "newer") && value == "" { // always
				continue
			}
			a := &app{out: io.Discard, term: &terminal{}}
			root := a.root()
			root.SetArgs(append(strings.Fields(cmd.CommandPath())[1:], "--"+f.Name+"="+value))
			err := root.Execute()
			var wrongUse *usageError
			if !errors.As(err, &wrongUse) || !strings.Contains(err.Error(), "--"+f.Name+` "`+value+`" is not`) {
				t.Errorf("%s --%s=%s: %v", cmd.CommandPath(), f.Name, value, err)
			}
		}
	})
	for name := range numbers {
		if !seen[name] {
			t.Errorf("no command has --%s", name)
		}
	}
}

func TestParseTimes(t *testing.T) {
	for text, want := range map[string]time.Duration{"0": 0, "90m": 90 * time.Minute, "8d": 8 * day, "1d12h": 36 * time.Hour, "36600d": 36600 * day} {
		if got, err := parseTime(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]int64{"0": 0, "1": 1, "500MB": 500e6, "2GiB": 2 << 30, "1.5 kB": 1500, "4EB": 4e18} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}

// All flags for a point in time take the same forms. Without a zone, the time is this machine's.
func TestParseSince(t *testing.T) {
	setZone(t, time.FixedZone("CET", 3600))
	now := time.Date(2026, 11, 22, 16, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"24h":                       now.AddDate(0, 0, -1),
		"3d":                        now.AddDate(0, 0, -3),
		"2026-11-20":                time.Date(2026, 11, 19, 23, 0, 0, 0, time.UTC),
		"2026-11-20T12:30":          time.Date(2026, 11, 20, 11, 30, 0, 0, time.UTC),
		"2026-11-20 12:30":          time.Date(2026, 11, 20, 11, 30, 0, 0, time.UTC),
		"2026-11-20T12:30Z":         time.Date(2026, 11, 20, 12, 30, 0, 0, time.UTC),
		"2026-11-20T12:30:15":       time.Date(2026, 11, 20, 11, 30, 15, 0, time.UTC),
		"2026-11-20 12:30:15":       time.Date(2026, 11, 20, 11, 30, 15, 0, time.UTC),
		"2026-11-20T12:30:15.5":     time.Date(2026, 11, 20, 11, 30, 15, 5e8, time.UTC),
		"2026-11-20T12:30:15Z":      time.Date(2026, 11, 20, 12, 30, 15, 0, time.UTC),
		"2026-11-20 12:30:15+02:00": time.Date(2026, 11, 20, 10, 30, 15, 0, time.UTC),
	} {
		if got, err := parseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"2026-11-20T", "2026-11-31", "2026-11-20T25:00", "12:30", "yesterday"} {
		if got, err := parseSince(text, now); err == nil {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// Until a day, a minute or a second is until its end, so that a time that bctl shows can be given.
func TestParseUntil(t *testing.T) {
	setZone(t, time.FixedZone("CET", 3600))
	now := time.Date(2026, 11, 22, 16, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                      {},
		"24h":                   now.AddDate(0, 0, -1),
		"2026-11-20":            time.Date(2026, 11, 20, 22, 59, 59, 1e9-1, time.UTC),
		"2026-11-20T12:30":      time.Date(2026, 11, 20, 11, 30, 59, 1e9-1, time.UTC),
		"2026-11-20 12:30Z":     time.Date(2026, 11, 20, 12, 30, 59, 1e9-1, time.UTC),
		"2026-11-20T12:30:15":   time.Date(2026, 11, 20, 11, 30, 15, 1e9-1, time.UTC),
		"2026-11-20T12:30:15Z":  time.Date(2026, 11, 20, 12, 30, 15, 1e9-1, time.UTC),
		"2026-11-20T12:30:15.5": time.Date(2026, 11, 20, 11, 30, 15, 5e8, time.UTC),
	} {
		if got, err := parseUntil(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
}

// A duration is shown in a form that can be parsed.
func TestTimeText(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0", "20s": "20s", "90s": "1m30s", "10m": "10m", "90m": "1h30m", "2h": "2h", "26h": "1d2h", "1d10m": "1d10m", "1d20s": "1d20s", "8d12h": "8d12h", "8d": "8d",
	} {
		d, err := parseTime(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := timeText(d); got != want {
			t.Errorf("%s is shown as %s, want %s", text, got, want)
		}
		if again, err := parseTime(timeText(d)); err != nil || again != d {
			t.Errorf("%s is read as %v, %v", timeText(d), again, err)
		}
	}
}
