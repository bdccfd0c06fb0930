package telemetry

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the events of docs/observability.md")

const (
	root       = "../.."
	eventsFile = root + "/docs/observability.md"
	eventsFrom = "<!-- events -->\n"
	eventsTo   = "<!-- end of events -->\n"
)

// An event is a line that a service can log.
type event struct {
	message, level string
	keys, of       []string
}

// messageAt is the index of the message among the arguments of a logger's methods.
var messageAt = map[string]int{"Debug": 0, "Info": 0, "Warn": 0, "Error": 0, "Log": 2}

// ids are the keys set by methods of bctl that return a logger.
var ids = map[string][]string{"about": {"snapshot", "task", "batch", "attempt", "pack", "lists"}}

// A calls finds the log calls of a file.
type calls struct {
	*testing.T
	files  *token.FileSet
	path   string
	events map[string]*event
}

// The documentation lists each event that the code can log, with its level and keys. The test
// parses the code, so that neither can change without the other.
func TestDocumentationListsTheEvents(t *testing.T) {
	c := &calls{T: t, files: token.NewFileSet(), events: map[string]*event{}}
	for _, dir := range []string{"services", "internal"} {
		if err := filepath.WalkDir(filepath.Join(root, dir), c.visit); err != nil {
			t.Fatal(err)
		}
	}
	var table strings.Builder
	table.WriteString("| event | level | keys | of |\n| --- | --- | --- | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(c.events)) {
		e := c.events[name]
		slices.Sort(e.of)
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", e.message, e.level, strings.Join(e.keys, " "), strings.Join(slices.Compact(e.of), ", "))
	}
	if len(c.events) < 50 {
		t.Fatalf("found only %d events", len(c.events))
	}
	text, err := os.ReadFile(eventsFile)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), eventsFrom)
	_, after, ok2 := strings.Cut(rest, eventsTo)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the events", eventsFile)
	}
	want := before + eventsFrom + table.String() + eventsTo + after
	switch {
	case string(text) == want:
	case !*update:
		t.Fatalf("%s does not agree with what the code logs; go test ./internal/telemetry -run Documentation -update writes it:\n%s", eventsFile, table.String())
	default:
		if err := os.WriteFile(eventsFile, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// visit parses one file. Files that import testing are not part of a service.
func (c *calls) visit(path string, d fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if d.IsDir() && d.Name() == "ent" {
		return fs.SkipDir // generated
	}
	if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
		return nil
	}
	file, err := parser.ParseFile(c.files, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, i := range file.Imports {
		if i.Path.Value == `"testing"` {
			return nil
		}
	}
	c.path = path
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			c.call(call)
		}
		return true
	})
	return nil
}

// processOf returns the process that a file belongs to, or that a message names.
func processOf(path, message string) string {
	for _, name := range []string{"walker", "reader", "committer", "pruner"} {
		if strings.Contains(path, "/services/"+name+"/") || strings.HasPrefix(message, name+" st") {
			return name
		}
	}
	if strings.Contains(path, "/bctl/cli/") || strings.Contains(path, "/bctl/embedded/") {
		return "bctl"
	}
	return "all"
}

func (c *calls) call(call *ast.CallExpr) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	at, ok := messageAt[method.Sel.Name]
	if !ok || len(call.Args) <= at || c.text(method.X) == "http" {
		return
	}
	message, ok := literal(call.Args[at])
	if !ok {
		c.Errorf("%s: what is logged is not a literal: %s", c.files.Position(call.Pos()), c.text(call))
		return
	}
	if call.Ellipsis.IsValid() {
		c.Errorf("%s: the keys of %q are not literals", c.files.Position(call.Pos()), message)
		return
	}
	level := strings.ToLower(method.Sel.Name)
	if at == 2 { // Log(ctx, level, message)
		_, level, ok = strings.Cut(c.text(call.Args[1]), "slog.Level")
		if level = strings.ToLower(strings.TrimRight(level, ")")); !ok {
			c.Errorf("%s: the level of %q is not known", c.files.Position(call.Pos()), message)
		}
	}
	e := c.events[message+" "+level]
	if e == nil {
		e = &event{message: message, level: level}
		c.events[message+" "+level] = e
	}
	e.of = append(e.of, processOf(c.path, message))
	keys := append(c.given(method.X), c.keys(call.Args[at+1:])...)
	c.wantOnce(call, keys)
	for _, key := range keys {
		if !slices.Contains(e.keys, key) {
			e.keys = append(e.keys, key)
		}
	}
}

// lineKeys are the keys that each line has already: those of slog, of the process (serve.Named),
// and of a failure that repeats.
var lineKeys = []string{"time", "level", "msg", "service", "worker", "failures"}

// wantOnce refuses an event whose line would have a key twice: of those that read JSON, many keep
// only one of the two values.
func (c *calls) wantOnce(call *ast.CallExpr, keys []string) {
	seen := map[string]bool{}
	for _, key := range lineKeys {
		seen[key] = true
	}
	for _, key := range keys {
		if seen[key] && !strings.HasSuffix(c.path, "/telemetry/repeats.go") { // which sets failures itself
			c.Errorf("%s: the line has the key %s twice", c.files.Position(call.Pos()), key)
		}
		seen[key] = true
	}
}

// given returns the keys that a logger has from the call that made it.
func (c *calls) given(logger ast.Expr) []string {
	call, ok := logger.(*ast.CallExpr)
	if !ok {
		return nil
	}
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	if method.Sel.Name == "With" {
		return c.keys(call.Args)
	}
	return ids[method.Sel.Name]
}

var keyName = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

// keys returns the keys of pairs, and refuses a value that another line would write differently.
func (c *calls) keys(pairs []ast.Expr) (keys []string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		key, ok := literal(pairs[i])
		if !ok || !keyName.MatchString(key) {
			c.Errorf("%s: %s is not the name of a key", c.files.Position(pairs[i].Pos()), c.text(pairs[i]))
		}
		value := c.text(pairs[i+1])
		switch key {
		case "snapshot":
			ok = strings.HasSuffix(value, ".Short()")
		case "filer", "shard", "policy":
			ok = strings.HasSuffix(value, ".Name") || strings.HasSuffix(value, ".FilerName") || strings.HasSuffix(value, ".ShardName")
		}
		if !ok {
			c.Errorf("%s: %s is not how others write %s", c.files.Position(pairs[i].Pos()), value, key)
		}
		keys = append(keys, key)
	}
	if len(pairs)%2 != 0 {
		c.Errorf("%s: a key without a value", c.files.Position(pairs[0].Pos()))
	}
	return keys
}

func (c *calls) text(n ast.Node) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, c.files, n); err != nil {
		c.Fatal(err)
	}
	return b.String()
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}
