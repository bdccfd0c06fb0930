package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// maxNotFound is how many listed paths that were not found are printed.
const maxNotFound = 10

// A report prints the results of snapshots: a single one in full, several with a line each and a
// total.
type report struct {
	app     *app
	index   index.Catalog
	asked   int // snapshots
	started time.Time
	verbose bool

	mu     sync.Mutex
	counts backup.Counts
	// The results of the requested snapshots. failures includes those that could not be started.
	committed, incomplete, failures int
	unbegun                         int      // part of failures: those that could not be started
	unmatched                       given    // what matched nothing in any of them
	notFound                        []string // paths of --files-from that the only snapshot does not have
	failure                         error    // of the only requested snapshot
}

func newReport(a *app, i index.Catalog, asked int) *report {
	return &report{app: a, index: i, asked: asked, started: time.Now()}
}

// ended reports the result of a snapshot, and the patterns that matched nothing in it. If the index
// is unavailable, it reports nothing and fails.
func (r *report) ended(ctx context.Context, s *backup.Snapshot, elapsed time.Duration, unmatched given) error {
	problems, err := r.problemsOf(ctx, s)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Add(s.Counts)
	r.unmatched = r.unmatched.only(unmatched)
	switch {
	case s.State != backup.Committed:
		r.failures++
		r.failure = fmt.Errorf("the snapshot of %s failed: %s", display(s.Shard.Name), s.Reason)
	case s.Counts.Errors > 0:
		r.committed++
		r.incomplete++
	default:
		r.committed++
	}
	if err := r.problems(s, problems); err != nil {
		return err
	}
	if s.State == backup.Committed && s.Counts.Files == 0 && s.Counts.Directories <= 1 {
		r.app.note("%s is empty: check that it is mounted", display(s.Shard.Name))
	}
	switch {
	case r.app.json:
		j := newSummaryJSON(s, elapsed)
		j.unmatchedJSON, j.NotFound = unmatched.json(), r.notFound
		return r.app.print(j)
	case r.asked > 1:
		return r.line(s, elapsed)
	}
	return r.full(s, elapsed)
}

// notBegun is failed for a snapshot that could not be started.
func (r *report) notBegun(path string, err error) error {
	r.mu.Lock()
	r.unbegun++
	r.mu.Unlock()
	return r.failed(path, err)
}

// failed reports that a snapshot was not made. path is that of the tree, if the tree was given by
// path.
func (r *report) failed(path string, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures++
	r.failure = err
	r.unmatched = given{} // the tree's content is not known
	switch {
	case r.asked == 1: // reported at the end
		return nil
	case r.app.json:
		if err := r.app.print(errorJSON{Type: "error", Path: path, Raw: backup.RawBase64(path), Error: message(err)}); err != nil {
			return err
		}
	}
	r.app.term.println("bctl: " + message(err))
	return nil
}

// detached reports the snapshots that the services continue.
func (r *report) detached(begun []backup.Snapshot) error {
	for n := range begun {
		s := &begun[n]
		var err error
		if r.app.json {
			err = r.app.print(newSummaryJSON(s, 0))
		} else {
			_, err = fmt.Fprintf(r.app.out, "snapshot %v of %s %s is running\n", s.ID, display(s.Filer.Name), display(s.Shard.Name))
		}
		if err != nil {
			return err
		}
	}
	return r.asError()
}

// result ends the report and returns the error of the command.
func (r *report) result() error {
	if r.asked > 1 {
		if err := r.total(); err != nil {
			return err
		}
	}
	return r.ending()
}

// ending prints the patterns and paths that matched nothing, and returns the error of the command.
func (r *report) ending() error {
	r.app.noteGiven(r.unmatched)
	if err := r.asError(); err != nil {
		return err
	}
	if len(r.notFound) > 0 {
		r.noteNotFound()
	}
	if r.incomplete > 0 || len(r.notFound) > 0 {
		return errIncomplete
	}
	return nil
}

// noteNotFound prints the first paths of --files-from that are not in the snapshot.
func (r *report) noteNotFound() {
	for _, path := range r.notFound[:min(len(r.notFound), maxNotFound)] {
		r.app.note("%s is listed, but it was not found or is excluded", display(path))
	}
	if more := len(r.notFound) - maxNotFound; more > 0 {
		r.app.note("… and %s more (--json lists all as not_found)", humanize.Comma(int64(more)))
	}
}

// asError returns one error for all failures. Each was reported already, unless there is only one.
func (r *report) asError() error {
	if r.failures == 0 || r.asked == 1 {
		return r.failure
	}
	failed, were := r.failures-r.unbegun, english.PluralWord(r.unbegun, "was", "were")
	switch {
	case r.unbegun == 0:
		return fmt.Errorf("%d of %d snapshots failed", failed, r.asked)
	case failed == 0:
		return fmt.Errorf("%d of %d snapshots %s not begun", r.unbegun, r.asked, were)
	}
	return fmt.Errorf("%d of %d snapshots failed, and %d %s not begun", failed, r.asked, r.unbegun, were)
}

// problemsOf returns a snapshot's problems. The index keeps the first ten thousand.
func (r *report) problemsOf(ctx context.Context, s *backup.Snapshot) (list []backup.Problem, err error) {
	if s.Counts.Errors == 0 {
		return nil, nil
	}
	for p, err := range r.index.Problems(ctx, s.ID) {
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// problems prints a snapshot's problems, and how many more of each cause there are.
func (r *report) problems(s *backup.Snapshot, list []backup.Problem) error {
	causes := causeCounter{term: r.app.term, all: r.verbose}
	if r.asked > 1 {
		causes.label = display(s.Shard.Name) + ": "
	}
	for _, p := range list {
		if !r.app.json {
			causes.problem(p)
			continue
		}
		j := problemJSON(p)
		if r.asked > 1 {
			j.Snapshot = s.ID.String()
		}
		if err := r.app.print(j); err != nil {
			return err
		}
	}
	where := fmt.Sprintf("bctl snapshot show %s lists all errors.", s.ID.Short())
	if unknown := s.Counts.Errors - int64(len(list)); unknown > 0 {
		where = fmt.Sprintf("bctl snapshot show %s lists more errors. The index does not have the last %s.", s.ID.Short(), counted(unknown, "error"))
	}
	causes.end(where)
	return nil
}

// line prints the summary of one of several snapshots.
func (r *report) line(s *backup.Snapshot, elapsed time.Duration) error {
	n := &s.Counts
	text := ""
	if n.Errors > 0 {
		text = counted(n.Errors, "error") + "; "
	}
	text = fmt.Sprintf("%s  %s%s %s, number %d: %s in %s", s.ID.Short(), text, display(s.Filer.Name), display(s.Shard.Name), s.Number, s.State, clock(elapsed))
	if s.State == backup.Committed {
		text += fmt.Sprintf("\n          %s, %s; %s new, stored as %s", counted(n.Files, "file"), size(n.Bytes), size(n.NewBytes), size(n.StoredBytes))
	} else {
		text += ": " + display(s.Reason)
	}
	if n.Vanished > 0 {
		text += fmt.Sprintf("; %s vanished", humanize.Comma(n.Vanished))
	}
	_, err := fmt.Fprintln(r.app.out, fitted(text, r.app.width()))
	return err
}

// full prints the summary of the only snapshot, with errors first.
func (r *report) full(s *backup.Snapshot, elapsed time.Duration) error {
	return r.app.details(func(row rowFunc) {
		errorsRow(row, s)
		row("snapshot", "%s of %s %s, number %d: %s in %.1f s", s.ID.Short(), display(s.Filer.Name), display(s.Shard.Name), s.Number, s.State, elapsed.Seconds())
		if from := takenFrom(s); from != "" {
			row("source", "%s", display(from))
		}
		if s.State == backup.Committed {
			countRows(row, &s.Counts)
		} else {
			failedRows(row, &s.Counts)
		}
		if r.verbose {
			workRows(row, &s.Counts)
		}
	})
}

// errorsRow adds the number of errors, if there are any.
func errorsRow(row rowFunc, s *backup.Snapshot) {
	n := s.Counts.Errors
	switch {
	case n == 0:
	case s.State == backup.Committed:
		row("errors", "%s: the snapshot differs from the file server", humanize.Comma(n))
	default:
		row("errors", "%s", humanize.Comma(n))
	}
}

// failedRows adds the rows of a failed snapshot, with the totals of the part of the tree that it
// reached.
func failedRows(row rowFunc, n *backup.Counts) {
	if n.Files+n.Directories > 0 {
		row("found", "%s files in %s directories, %s", humanize.Comma(n.Files), humanize.Comma(n.Directories), size(n.Bytes))
	}
	if n.ReadBytes > 0 {
		row("read", "%s", size(n.ReadBytes))
	}
	if n.StoredBytes > 0 {
		row("stored", "%s, which the next backup uses", size(n.StoredBytes))
	}
}

// foundJSON is the part of the output that a backup and its dry run share.
type foundJSON struct {
	Files          int64 `json:"files"`
	Directories    int64 `json:"directories"`
	Bytes          int64 `json:"bytes"`
	FilesNew       int64 `json:"files_new"`
	FilesChanged   int64 `json:"files_changed"`
	FilesUnchanged int64 `json:"files_unchanged"`
}

func newFoundJSON(n *backup.Counts) foundJSON {
	return foundJSON{n.Files, n.Directories, n.Bytes, n.FilesNew, n.FilesChanged, n.FilesUnchanged}
}

// unmatchedJSON lists the exclusions that matched nothing.
type unmatchedJSON struct {
	Patterns  []string `json:"unmatched_patterns,omitempty"`   // of --exclude
	IfPresent []string `json:"unmatched_if_present,omitempty"` // names of --exclude-if-present
}

// backupSummary is the output of backup --json for each snapshot. The names are fixed.
type backupSummary struct {
	Type     string `json:"type"` // summary
	Snapshot string `json:"snapshot"`
	Filer    string `json:"filer"`
	Shard    string `json:"shard"`
	State    string `json:"state"`
	Reason   string `json:"reason,omitempty"`
	foundJSON
	Carried        int64        `json:"carried"`  // carried forward from an earlier snapshot
	Torn           int64        `json:"torn"`     // changed during each attempt to read them
	Vanished       int64        `json:"vanished"` // vanished before they could be read
	NewBytes       int64        `json:"new_bytes"`
	StoredBytes    int64        `json:"stored_bytes"`
	ReadBytes      int64        `json:"read_bytes"`
	Errors         int64        `json:"errors"`
	StatCalls      int64        `json:"stat_calls"`
	ElapsedSeconds float64      `json:"elapsed_seconds"`
	StageSeconds   stageSeconds `json:"stage_seconds"`
	unmatchedJSON               // if this process walked
	// NotFound are the paths of --files-from that the walk did not find.
	NotFound []string `json:"not_found,omitempty"`
}

func newSummaryJSON(s *backup.Snapshot, elapsed time.Duration) backupSummary {
	n := &s.Counts
	return backupSummary{
		Type: "summary", Snapshot: s.ID.String(), Filer: s.Filer.Name, Shard: s.Shard.Name, State: string(s.State), Reason: s.Reason,
		foundJSON: newFoundJSON(n), Carried: n.Carried, Torn: n.Torn, Vanished: n.Vanished,
		NewBytes: n.NewBytes, StoredBytes: n.StoredBytes, ReadBytes: n.ReadBytes, Errors: n.Errors, StatCalls: n.StatCalls,
		ElapsedSeconds: elapsed.Seconds(), StageSeconds: stagesOf(n),
	}
}

// backupTotal is the last object of backup --json if it made several snapshots.
type backupTotal struct {
	Type           string  `json:"type"` // total
	Snapshots      int     `json:"snapshots"`
	Committed      int     `json:"committed"`
	Incomplete     int     `json:"incomplete"` // of the committed: those with errors
	Failed         int     `json:"failed"`     // or not begun
	NotBegun       int     `json:"not_begun"`
	Files          int64   `json:"files"`
	Directories    int64   `json:"directories"`
	Bytes          int64   `json:"bytes"`
	NewBytes       int64   `json:"new_bytes"`
	StoredBytes    int64   `json:"stored_bytes"`
	ReadBytes      int64   `json:"read_bytes"`
	Errors         int64   `json:"errors"`
	ElapsedSeconds float64 `json:"elapsed_seconds"`
	unmatchedJSON          // in none of them
}

func (r *report) total() error {
	n, elapsed := &r.counts, time.Since(r.started)
	if r.app.json {
		return r.app.print(backupTotal{
			Type: "total", Snapshots: r.asked, Committed: r.committed, Incomplete: r.incomplete, Failed: r.failures, NotBegun: r.unbegun,
			Files: n.Files, Directories: n.Directories, Bytes: n.Bytes, NewBytes: n.NewBytes, StoredBytes: n.StoredBytes,
			ReadBytes: n.ReadBytes, Errors: n.Errors, ElapsedSeconds: elapsed.Seconds(), unmatchedJSON: r.unmatched.json(),
		})
	}
	results := []string{}
	if failed := r.failures - r.unbegun; failed > 0 {
		results = append(results, fmt.Sprintf("%d failed", failed))
	}
	if r.unbegun > 0 {
		results = append(results, fmt.Sprintf("%d not begun", r.unbegun))
	}
	results = append(results, fmt.Sprintf("%d committed", r.committed))
	if r.incomplete > 0 {
		results = append(results, fmt.Sprintf("%d of these with errors", r.incomplete))
	}
	_, err := fmt.Fprintf(r.app.out, "%s in %s: %s\n%s, %s; %s new, stored as %s\n", counted(r.asked, "snapshot"), clock(elapsed),
		strings.Join(results, ", "), counted(n.Files, "file"), size(n.Bytes), size(n.NewBytes), size(n.StoredBytes))
	return err
}
