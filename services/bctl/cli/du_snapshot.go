package cli

import (
	"cmp"
	"context"
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
	o := sizes.Options{By: groupings[c.by], Depth: c.depth, Most: c.limit}
	stop := c.app.animate(func() string { return "adding up" })
	if c.stored {
		o.Weights, err = weigh(ctx, i, path, s.ID)
	}
	tally := sizes.NewTally(o)
	var missing sizes.Flaws
	if err == nil {
		missing, err = tally.Add(ctx, i, s.ID, path, s.Pages)
	}
	stop()
	if err != nil {
		return err
	}
	r := tally.Result()
	t := &sizeTable{app: c.app, by: c.by, form: &c.form, stored: c.stored}
	if err := t.print(&r, s.ID); err != nil {
		return err
	}
	f := flaws{listed: int(r.Total.Files + r.Total.Directories - 1)}
	for _, dir := range missing.Directories {
		f.addIncomplete(dir)
	}
	return errors.Join(f.conclude(ctx, c.app, i, s.ID, path, &e), missing.Differs)
}

// weigh finds out what chunks take that are below a path of snapshots.
func weigh(ctx context.Context, i index.Index, path string, snapshots ...backup.SnapshotID) (*shares.Weights, error) {
	lists := map[backup.ChunkID]struct{}{}
	for _, id := range snapshots {
		if err := sizes.AddLists(ctx, i, id, path, lists); err != nil {
			return nil, err
		}
	}
	w, err := shares.ReadWeights(ctx, i)
	if err == nil {
		err = w.AddLists(ctx, lists)
	}
	return w, err
}

// A sizeTable prints what was added up.
type sizeTable struct {
	app    *app
	by     string // of sizeKinds
	form   *tableForm
	stored bool
}

// A sized is a line of the table: a group, the others, or the total.
type sized struct {
	Type        string  `json:"type" parquet:"type"` // of sizeKinds, others or total
	Snapshot    string  `json:"snapshot,omitempty" parquet:"-"`
	Path        *string `json:"path,omitempty" parquet:"path,optional"`
	Raw         string  `json:"path_b64,omitempty" parquet:"path_b64,optional"`
	UID         *int64  `json:"uid,omitempty" parquet:"uid,optional"` // absent: not known
	Owner       string  `json:"owner,omitempty" parquet:"owner,optional"`
	Extension   *string `json:"extension,omitempty" parquet:"extension,optional"`
	From        *int64  `json:"from_bytes,omitempty" parquet:"from_bytes,optional"`
	Below       *int64  `json:"below_bytes,omitempty" parquet:"below_bytes,optional"`
	Groups      int64   `json:"groups,omitempty" parquet:"-"` // of the total
	Files       int64   `json:"files" parquet:"files"`
	Directories int64   `json:"directories" parquet:"directories"`
	Bytes       int64   `json:"bytes" parquet:"bytes"`
	Stored      *int64  `json:"stored_bytes,omitempty" parquet:"stored_bytes,optional"`
	Missing     int64   `json:"missing_files,omitempty" parquet:"missing_files"`
	Unweighed   int64   `json:"unweighed_entries,omitempty" parquet:"unweighed_entries"`

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
	text := validText(r.Text)
	switch t.by {
	case "directory":
		l.Path, l.Raw, l.name = &text, backup.RawBase64(r.Text), displayDirectory(r.Text, backup.Directory)
	case "file":
		l.Path, l.Raw, l.name = &text, backup.RawBase64(r.Text), display(r.Text)
	case "extension":
		l.Extension, l.name = &text, display(r.Text)
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
	case t.form.isSet():
		err = writeTable(t.app, t.form, lines, t.head(), t.cells)
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
	if t.app.json || t.form.isSet() {
		return
	}
	text := counted(r.Total.Files, "file") + " of " + size(r.Total.Bytes)
	if t.stored {
		text += ", which take up to " + size(r.Total.Stored)
	}
	t.app.note("%s", text)
}

// keys are the columns that name a group.
func (t *sizeTable) keys() []string {
	switch t.by {
	case "owner":
		return []string{"uid", "owner"}
	case "extension":
		return []string{"extension"}
	case "size":
		return []string{"from_bytes", "below_bytes"}
	}
	return []string{"path", "path_b64"}
}

// head are the names of the columns of CSV.
func (t *sizeTable) head() []string {
	head := append(append([]string{"type"}, t.keys()...), "files", "directories", "bytes")
	if t.stored {
		head = append(head, "stored_bytes")
	}
	return head
}

// cells are the columns of a line of CSV, in bytes.
func (t *sizeTable) cells(l *sized) []string {
	cells := []string{l.Type}
	for _, key := range t.keys() {
		cells = append(cells, l.csv(key))
	}
	for _, number := range []int64{l.Files, l.Directories, l.Bytes} {
		cells = append(cells, strconv.FormatInt(number, 10))
	}
	if t.stored {
		cells = append(cells, strconv.FormatInt(*l.Stored, 10))
	}
	return cells
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
