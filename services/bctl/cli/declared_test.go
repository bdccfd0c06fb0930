package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/bctl/bctl/internal/backup"
)

// wantSet fails for a zero field that is not in the list of fields that files do not declare. A new
// field of a filer, shard or policy fails here until bctl apply and bctl export support it.
func wantSet(t *testing.T, v any, not ...string) {
	t.Helper()
	for i := range reflect.TypeOf(v).NumField() {
		name := reflect.TypeOf(v).Field(i).Name
		if zero := reflect.ValueOf(v).Field(i).IsZero(); zero != slices.Contains(not, name) {
			t.Errorf("%T.%s: not set %t", v, name, zero)
		}
	}
}

// Every setting survives being declared and parsed again.
func TestDeclarationsLoseNothing(t *testing.T) {
	all := backup.Selection{Exclude: []string{"*.tmp", "!keep.tmp", "a: b", "yes"}, ExcludeIfPresent: []string{".nobackup"}, OneFileSystem: true, ExcludeLargerBytes: 3 << 30}
	filer := backup.Filer{
		Name: "nas1", Site: "oslo", Limits: backup.Limits{WalkTasks: 1, ReadBatches: 2, ReadBytesPerSecond: 1234567, Floor: 25}, Compare: backup.CompareMtime,
		Selection: all, Labels: map[string]string{"env": "prod", "on": "true", "n": "007"},
	}
	shard := backup.Shard{Name: "ünïcode", Source: "posix:///srv/a%20b", Snapshots: ".snapshot/hourly.*", Selection: all}
	policy := backup.Policy{
		Name: "nightly", Labels: filer.Labels, Paused: true, Schedule: "30 1 * * *", TimeZone: "Europe/Berlin", Jitter: 90 * time.Minute,
		Windows: []string{"mon-fri 20:00-06:00"}, RecoveryPoint: 30 * time.Hour, Floor: 50, Drill: 7 * day, Selection: all,
		Retention: backup.Retention{
			Style: backup.StyleRestic, Last: 1, Hourly: 2, Daily: 3, Weekly: 4, Monthly: 5, Yearly: backup.Unlimited, Within: backup.Period{Days: 1, Hours: 12},
			WithinHourly: backup.Period{Hours: 36}, WithinDaily: backup.Period{Days: 30}, WithinWeekly: backup.Period{Months: 6},
			WithinMonthly: backup.Period{Years: 1, Months: 2, Days: 3, Hours: 4}, WithinYearly: backup.Period{Years: 75}, Tags: [][]string{{"a", "b"}, {"c d"}},
		},
	}
	wantSet(t, all)
	wantSet(t, filer, "ID", "Retired")
	wantSet(t, filer.Limits)
	wantSet(t, shard, "ID", "Key", "Filer", "Retired")
	wantSet(t, policy, "ID", "Revision")
	wantSet(t, policy.Retention, "Style") // a policy in the style pbs has no periods

	d := declareFiler(&filer)
	d.Shards = []declaredShard{declareShard(&shard)}
	text, err := yaml.Marshal(declaredFleet{[]declaredFiler{d}, []declaredPolicy{declarePolicy(&policy)}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := readFleet("fleet.yaml", text)
	if err != nil {
		t.Fatalf("%v of\n%s", err, text)
	}
	if got := f.filers[0].Filer; !reflect.DeepEqual(got, filer) {
		t.Errorf("%+v, want %+v", got, filer)
	}
	if got := f.filers[0].shards[0]; !reflect.DeepEqual(got, shard) {
		t.Errorf("%+v, want %+v", got, shard)
	}
	if got := f.policies[0]; !reflect.DeepEqual(got, policy) {
		t.Errorf("%+v, want %+v", got, policy)
	}
}

// A size is written in the shortest form that can be parsed.
func TestDeclaredSizes(t *testing.T) {
	for size, want := range map[declaredSize]any{
		1: int64(1), 1234567: int64(1234567), 1000: "1KB", 1024: "1KiB", 200e6: "200MB", 3 << 30: "3GiB", 5e12: "5TB",
	} {
		got, err := size.MarshalYAML()
		if err != nil || got != want {
			t.Errorf("%d: %v, %v, want %v", size, got, err, want)
		}
	}
}

// Numbers are whole, and are not rounded.
func TestDeclaredNumbers(t *testing.T) {
	for value, want := range map[string]string{
		"1.5": `f:2: walk_tasks: want a whole number, not "1.5"`, "1e2": `f:2: walk_tasks: want a whole number, not "1e2"`, "'7'": `f:2: walk_tasks: want a whole number, not "7"`,
		"[1]": "f:2: walk_tasks: want a whole number, not a list", "99999999999999999999": `f:2: walk_tasks: 99999999999999999999 is too large`,
		"-1": "f:2: filer a: walk_tasks: -1 is not a number from 0 to 65536", "7": "<nil>", "~": "<nil>", "": "<nil>",
	} {
		if _, err := readFleet("f", []byte("filers:\n- {name: a, walk_tasks: "+value+"}\n")); fmt.Sprint(err) != want {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
}

// A text is not true, although the YAML package takes some texts for it.
func TestDeclaredTruths(t *testing.T) {
	for value, want := range map[string]string{
		"'yes'": `f:2: one_file_system: want true or false, not "yes"`, `"true"`: `f:2: one_file_system: want true or false, not "true"`,
		"maybe": `f:2: one_file_system: want true or false, not "maybe"`, "[true]": `f:2: one_file_system: want true or false, not a list`,
		"true": "<nil>", "false": "<nil>", "yes": "<nil>", "~": "<nil>",
	} {
		if _, err := readFleet("f", []byte("filers:\n- {name: a, one_file_system: "+value+"}\n")); fmt.Sprint(err) != want {
			t.Errorf("%s: %v, want %s", value, err, want)
		}
	}
}

// The file in the documentation can be applied, and the page describes each setting.
func TestFleetFileOfTheDocumentation(t *testing.T) {
	page, err := os.ReadFile(filepath.FromSlash("../../../docs/fleet-file.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ := strings.Cut(rest, "```")
	f, err := readFleet("fleet-file.md", []byte(text))
	if err != nil || len(f.filers) != 2 || len(f.filers[0].shards) != 2 || len(f.policies) != 1 {
		t.Fatalf("%+v, %v", f, err)
	}
	for _, declared := range []any{declaredFleet{}, declaredFiler{}, declaredShard{}, declaredPolicy{}, declaredExclusions{}, declaredKeep{}} {
		for i := range reflect.TypeOf(declared).NumField() {
			name, _, _ := strings.Cut(reflect.TypeOf(declared).Field(i).Tag.Get("yaml"), ",")
			if !regexp.MustCompile(`\b` + name + `\b`).Match(page) {
				t.Errorf("docs/fleet-file.md does not tell of %s", name)
			}
		}
	}
}

func FuzzFleetFile(f *testing.F) {
	f.Add([]byte("filers:\n  - name: a\n    shards: [{name: /x}]\npolicies: [{name: p, schedule: '@daily', keep: {daily: 1}}]\n"))
	f.Add([]byte("filers: &a [*a]\n"))
	f.Add([]byte("filers: [{? {a: b} : c}]\n"))
	f.Add([]byte("filers: [{name: a, read_rate: [1]}]\n"))
	f.Add([]byte("filers: [&a {<<, {b: c}}]\n"))
	f.Add([]byte("filers: [{<<: {{a: b}: c}, name: a}]\n"))
	f.Add([]byte("filers: [null, {<<: {name: x}}]\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := readFleet("f", data)
		var wrong *usageError
		if err != nil && !errors.As(err, &wrong) {
			t.Errorf("error of no kind: %v", err)
		}
		if err == nil && file.has("", "") {
			t.Error("a filer without a name")
		}
	})
}

// All errors of a file are reported at once, each with its line.
func TestAllErrorsOfAFileAreReported(t *testing.T) {
	_, err := readFleet("f.yaml", []byte(`filers:
- name: bad name
  site: Not A Site
- name: nas1
  compare: size
  walk_tasks: -1
  labels: {'': x}
  shards:
  - name: relative
  - name: /a
  - name: /a
- name: nas1
policies:
- name: p
  schedule: nonsense
  exclude: ['[a']
- name: p
  schedule: '@daily'
`))
	var got []string
	for line := range strings.Lines(fmt.Sprint(err)) {
		number, text, _ := strings.Cut(strings.TrimPrefix(line, "f.yaml:"), ": ")
		got = append(got, number+" "+strings.Fields(text)[0]+" "+strings.Fields(text)[1])
	}
	want := []string{
		"3 filer bad", "5 filer nas1:", "6 filer nas1:", `7 label "":`, "9 shard relative", "11 shard /a", "12 filer nas1",
		"15 policy p:", "16 exclude pattern", "17 policy p",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\n%v", got, err)
	}
	var many strings.Builder
	many.WriteString("filers:\n")
	for range 50 {
		many.WriteString("- name: /\n")
	}
	_, err = readFleet("f.yaml", []byte(many.String()))
	if lines := strings.Split(fmt.Sprint(err), "\n"); len(lines) != maxErrors+1 || !strings.HasSuffix(lines[maxErrors], " more errors") {
		t.Errorf("%v", err)
	}
}
