package cli

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/sqliteindex"
)

// aFleet is a file in which each setting of the given group can be replaced.
const aFleet = `filers:
  - name: a
    #filer
    shards:
      - name: /s
        #shard
policies:
  - name: p
    schedule: '@daily'
    #policy
    keep:
      yearly: 1
      #keep
`

// oddValues are values that some setting must not have.
func oddValues() []string {
	long := func(n int) string { return strings.Repeat("x", n) }
	list := func(n int, text string) string { return "[" + strings.Repeat(text+", ", n) + "]" }
	labels := "{"
	for n := range 65 {
		labels += fmt.Sprintf("k%d: v, ", n)
	}
	return []string{
		"-1", "0", "1", "101", "70000", "999999999999", "99999999999999999999", "1.5", ".nan", "2026-01-01", "true", "maybe", "~", "", "''", "' '",
		`"\0"`, `"\n"`, `"\t\e"`, "x", "'/x y'", "/x", "//x/../y/", "rel", "../x", "/../..", "'posix:///a'", "'posix:///a?b'", "'posix://a'", "'nfs://a/b'", "'posix:///%00'",
		long(40), long(256), long(300), long(2001), long(9000), "/" + long(2100), "'*/" + long(9000) + "'",
		"'-5m'", "90m", "2h", "1ns", "8d", "400d", "40000d", "99999999h", "500MB", "'-1MB'", "99999EB", "2PiB", "1000TB/s", "50%",
		"'@every -5m'", "'@every 1s'", "'@every x'", "'@every 1h'", "'@nonsense'", "'TZ=UTC 1 1 * * *'", "'1 1 31 2 *'", "'1 1 * *'", "'99 1 * * *'", "'* * * * *'",
		"Local", "Europe/Berlin", "Europe/Nowhere", "mtime", "'size'", "'mtime,x'", "oslo", "Oslo",
		"[]", "['']", `["\0"]`, "[-1]", "[x]", "[[x]]", "['[a']", "['!']", "[/]", "['20:00-06:00']", "['fri 9:00-9:00']", "[x/y]", "[..]",
		list(65, "'20:00-06:00'"), list(300, long(300)), list(10001, "x"), "[" + long(5000) + "]",
		"{}", "{a: b}", "{'': b}", "{a: ''}", "{a: [b]}", "{a=: b}", "{a-: b}", "{a: 'b,c'}", `{a: "\0"}`, `{"\0": a}`, "{a: " + long(300) + "}", "{" + long(300) + ": a}", labels + "}",
		"!!binary x", "!!int x", "!!map x",
	}
}

// A value that the index would refuse is refused when the file is read, with its line. All other
// values can be applied, and then nothing is left to change. The test tries odd values for every
// setting.
func TestOddSettingsAreRefusedBeforeAnythingIsChanged(t *testing.T) {
	idx, err := sqliteindex.Open(t.Context(), filepath.Join(t.TempDir(), "index.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer idx.Close()
	if _, _, err := idx.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused, applied := 0, 0
	for group, of := range map[string]any{"filer": declaredFiler{}, "shard": declaredShard{}, "policy": declaredPolicy{}, "keep": declaredKeep{}} {
		for _, setting := range settingNames(reflect.TypeOf(of)) {
			for _, value := range oddValues() {
				text, line := fleetWith(group, setting, value)
				name := fmt.Sprintf("%s, %s: %.60s", group, setting, value)
				file, err := readFleet("f.yaml", []byte(text))
				if err == nil {
					err = applyTo(t, idx, name, file)
				}
				if err == nil {
					applied++
					continue
				}
				refused++
				var wrong *usageError
				if !errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), fmt.Sprintf("f.yaml:%d: ", line)) || len(err.Error()) > 1000 && len(value) < 1000 {
					t.Errorf("%s, in line %d: %v", name, line, err)
				}
				if strings.Contains(err.Error(), "!!") && !strings.Contains(value, "!!") || strings.Contains(err.Error(), "cli.") {
					t.Errorf("%s: an error in terms of the program: %v", name, err)
				}
			}
		}
	}
	if refused < 1000 || applied < 300 {
		t.Errorf("%d refused, %d applied: is every setting tried?", refused, applied)
	}
}

// settingNames returns the names of settings, those of inlined groups included. A group's own
// settings are tried by themselves.
func settingNames(of reflect.Type) (names []string) {
	for i := range of.NumField() {
		name, options, _ := strings.Cut(of.Field(i).Tag.Get("yaml"), ",")
		if options == "inline" {
			names = append(names, settingNames(of.Field(i).Type)...)
		} else if name != "shards" && name != "keep" {
			names = append(names, name)
		}
	}
	return names
}

// fleetWith returns a file in which a setting has the given value, and the line of the setting.
func fleetWith(group, setting, value string) (text string, line int) {
	lines := strings.Split(aFleet, "\n")
	is := map[string]string{"filer name": "  - name: a", "shard name": "      - name: /s", "policy name": "  - name: p", "policy schedule": "    schedule:", "keep yearly": "      yearly:"}
	for n := range lines {
		old, ok := is[group+" "+setting]
		switch {
		case ok && strings.HasPrefix(lines[n], old):
			lines[n] = lines[n][:strings.Index(lines[n], ":")+1] + " " + value
		case !ok && strings.TrimSpace(lines[n]) == "#"+group:
			lines[n] = strings.Replace(lines[n], "#"+group, setting+": "+value, 1)
		default:
			continue
		}
		line = n + 1
	}
	return strings.Join(lines, "\n"), line
}

// applyTo makes the changes. Only the comparison with what is there may refuse the file.
func applyTo(t *testing.T, idx index.Index, name string, file *fleetFile) error {
	a := &app{term: &terminal{err: io.Discard}, cfg: &config.Config{}}
	p := &applyPlan{app: a, file: file}
	if err := p.compare(t.Context(), idx); err != nil {
		return err
	}
	for n := range p.changes {
		if err := p.changes[n].do(t.Context(), idx); err != nil {
			t.Errorf("%s: %s fails when others were made: %v", name, &p.changes[n], err)
		}
	}
	again := &applyPlan{app: a, file: file}
	if err := again.compare(t.Context(), idx); err != nil || len(again.changes) > 0 {
		t.Errorf("%s: applied again: %v, %+v", name, err, again.changes)
	}
	return nil
}
