package cli

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"math"
	"slices"
	"strconv"

	"github.com/dustin/go-humanize"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/shares"
	"github.com/bctl/bctl/internal/sizes"
)

const (
	mostSizes  = 1_000_000 // lines of du
	mostListed = 100_000   // of them, for other programs by default
)

// groupings are what sizeKinds mean.
var groupings = map[string]sizes.By{
	"directory": sizes.Directory, "owner": sizes.Owner, "extension": sizes.Extension, "size": sizes.Class, "file": sizes.File,
}

// snapshot prints what is large in a snapshot.
func (c *duCommand) snapshot(ctx context.Context, i index.Index, arg string) error {
	c.app.interruptible.Store(true)
	c.app.noteCurrent(ctx, i)
	s, path, e, err := c.which.place(ctx, c.app, i, arg)
	if err != nil {
		return err
	}
	if e.Kind != backup.Directory {
		return usage("%s is not a directory: bctl ls -l %s shows its size", display(path), display(arg))
	}
	o := sizes.Options{By: groupings[c.by], Depth: c.depth, Most: c.limit, Pages: s.Pages}
	stop := c.app.animate(func() string { return "adding up" })
	if c.stored {
		o.Weights, err = shares.ReadWeights(ctx, i)
	}
	var r sizes.Result
	if err == nil {
		r, err = sizes.Of(ctx, i, s.ID, path, o)
	}
	stop()
	if err != nil {
		return err
	}
	t := &sizeTable{app: c.app, by: c.by, csv: c.csv, stored: c.stored}
	if err := t.print(&r, s.ID); err != nil {
		return err
	}
	f := flaws{listed: int(r.Total.Files + r.Total.Directories - 1)}
	for _, dir := range r.Incomplete {
		f.addIncomplete(dir)
	}
	return errors.Join(f.conclude(ctx, c.app, i, s.ID, path, &e), r.Differs)
}

// A sizeTable prints what was added up.
type sizeTable struct {
	app    *app
	by     string // of sizeKinds
	csv    bool
	stored bool
}

// A sized is a line of the table: a group, the others, or the total.
type sized struct {
	Type        string  `json:"type"` // of sizeKinds, others or total
	Snapshot    string  `json:"snapshot,omitempty"`
	Path        *string `json:"path,omitempty"`
	Raw         string  `json:"path_b64,omitempty"`
	UID         *int64  `json:"uid,omitempty"` // absent: not known
	Owner       string  `json:"owner,omitempty"`
	Extension   *string `json:"extension,omitempty"`
	From        *int64  `json:"from_bytes,omitempty"`
	Below       *int64  `json:"below_bytes,omitempty"`
	Groups      int64   `json:"groups,omitempty"` // of the total
	Files       int64   `json:"files"`
	Directories int64   `json:"directories"`
	Bytes       int64   `json:"bytes"`
	Stored      *int64  `json:"stored_bytes,omitempty"`
	Missing     int64   `json:"missing_files,omitempty"`
	Unweighed   int64   `json:"unweighed_entries,omitempty"`

	name  string
	share string // of the bytes of all
}

// line returns the line of a sum.
func (t *sizeTable) line(kind, name string, s *sizes.Sum, total int64) sized {
	l := sized{Type: kind, Files: s.Files, Directories: s.Directories, Bytes: s.Bytes, Missing: s.Missing, Unweighed: s.Unweighed, name: name, share: percent(s.Bytes, total)}
	if t.stored {
		l.Stored = &s.Stored
	}
	return l
}

// row returns the line of a group.
func (t *sizeTable) row(r *sizes.Row, users *longList, total int64) sized {
	l := t.line(t.by, "", &r.Sum, total)
	switch t.by {
	case "directory":
		l.Path, l.Raw, l.name = &r.Text, backup.RawBase64(r.Text), displayDirectory(r.Text, backup.Directory)
	case "file":
		l.Path, l.Raw, l.name = &r.Text, backup.RawBase64(r.Text), display(r.Text)
	case "extension":
		l.Extension, l.name = &r.Text, display(r.Text)
		if r.Text == "" {
			l.name = "(none)"
		}
	case "size":
		end := sizes.ClassEnd(r.Number)
		l.From, l.Below, l.name = &r.Number, &end, className(r.Number, end)
	case "owner":
		if l.name = "(unknown)"; r.Number != sizes.Unknown {
			l.UID, l.name = &r.Number, users.owner(uint32(r.Number))
			if l.name != strconv.FormatInt(r.Number, 10) {
				l.Owner = l.name
			}
		}
	}
	return l
}

// className describes the sizes of a class.
func className(from, end int64) string {
	switch {
	case from == 0:
		return "0 B"
	case end == math.MaxInt64:
		return "from " + size(from)
	}
	return size(from) + " to " + size(end)
}

func (t *sizeTable) print(r *sizes.Result, of backup.SnapshotID) error {
	if t.by == "size" {
		slices.SortFunc(r.Rows, func(a, b sizes.Row) int { return cmp.Compare(a.Number, b.Number) })
	}
	users := newLongList(nil, false)
	lines := make([]sized, 0, len(r.Rows)+2)
	for n := range r.Rows {
		lines = append(lines, t.row(&r.Rows[n], users, r.Total.Bytes))
	}
	if r.Groups > int64(len(r.Rows)) || r.Full {
		lines = append(lines, t.line("others", "(others)", &r.Others, r.Total.Bytes))
	}
	total := t.line("total", "", &r.Total, r.Total.Bytes)
	total.Groups = r.Groups
	if (of != backup.SnapshotID{}) {
		total.Snapshot = of.String()
	}
	var err error
	switch {
	case t.csv:
		err = t.printCSV(lines)
	case t.app.json:
		err = printList(t.app, append(lines, total), nil, func(l sized) sized { return l })
	default:
		err = writeLines(t.app.out, t.columns().lines(lines, t.app.width()))
	}
	if err == nil {
		t.notes(r)
	}
	return err
}

func (t *sizeTable) columns() table[sized] {
	name := map[string]string{"directory": "DIRECTORY", "owner": "OWNER", "extension": "EXTENSION", "size": "SIZE CLASS", "file": "FILE"}[t.by]
	columns := table[sized]{
		{name: name, text: func(l sized) string { return l.name }, cut: tail, useful: usefulPath},
		{name: "FILES", right: true, text: func(l sized) string { return humanize.Comma(l.Files) }, leave: 3},
		{name: "SIZE", right: true, text: func(l sized) string { return size(l.Bytes) }},
		{name: "PART", right: true, text: func(l sized) string { return l.share }, leave: 2},
	}
	if t.by == "file" {
		columns = slices.Delete(columns, 1, 2)
	}
	if t.stored {
		columns = append(columns, column[sized]{name: "STORED", right: true, text: func(l sized) string { return size(*l.Stored) }, leave: 1},
			column[sized]{name: "RATIO", right: true, text: func(l sized) string { return percent(*l.Stored, l.Bytes) }, leave: 4})
	}
	return columns
}

// notes says what the table does not show.
func (t *sizeTable) notes(r *sizes.Result) {
	many := humanize.Comma(r.Groups)
	if r.Full {
		many = "more than " + many
		t.app.note("there are too many groups to keep all of them apart: what is in (others) may belong to some of the lines")
	}
	if r.Groups > int64(len(r.Rows)) {
		t.app.note("these are the largest %s of %s; --limit N shows the largest N", humanize.Comma(int64(len(r.Rows))), many)
	}
	if r.Total.Missing > 0 {
		t.app.note("the snapshot does not have the content of %s: their sizes are not counted", counted(r.Total.Missing, "file"))
	}
	if r.Total.Unweighed > 0 {
		t.app.note("STORED lacks %s: the index does not know where all of their content is (bctl check)", counted(r.Total.Unweighed, "entry"))
	}
	if t.app.json || t.csv {
		return
	}
	text := counted(r.Total.Files, "file") + " of " + size(r.Total.Bytes)
	if t.stored {
		text += ", which take " + size(r.Total.Stored)
	}
	t.app.note("%s", text)
}

// printCSV prints the lines in bytes, for other programs.
func (t *sizeTable) printCSV(list []sized) error {
	w := csv.NewWriter(t.app.out)
	keys := map[string][]string{"directory": {"path", "path_b64"}, "file": {"path", "path_b64"}, "owner": {"uid", "owner"}, "extension": {"extension"}, "size": {"from_bytes", "below_bytes"}}[t.by]
	head := append(append([]string{"type"}, keys...), "files", "directories", "bytes")
	if t.stored {
		head = append(head, "stored_bytes")
	}
	lines := [][]string{head}
	for n := range list {
		l := &list[n]
		line := []string{l.Type}
		for _, key := range keys {
			line = append(line, l.csv(key))
		}
		for _, number := range []int64{l.Files, l.Directories, l.Bytes} {
			line = append(line, strconv.FormatInt(number, 10))
		}
		if t.stored {
			line = append(line, strconv.FormatInt(*l.Stored, 10))
		}
		lines = append(lines, line)
	}
	return w.WriteAll(lines)
}

// csv returns what a line has in a column for what it is about.
func (l *sized) csv(column string) string {
	switch column {
	case "path_b64":
		return l.Raw
	case "owner":
		return l.Owner
	}
	if text := map[string]*string{"path": l.Path, "extension": l.Extension}[column]; text != nil {
		return *text
	}
	if number := map[string]*int64{"uid": l.UID, "from_bytes": l.From, "below_bytes": l.Below}[column]; number != nil {
		return strconv.FormatInt(*number, 10)
	}
	return ""
}
