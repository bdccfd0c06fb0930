package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func newLog(a *app) *cobra.Command {
	var since time.Time
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Show who forgot, held or marked snapshots, and who retired shards",
		Long: `Shows each forgotten snapshot, each hold that was set or removed, each mark of
a bad snapshot, each retired filer or shard, each deletion that the brake has
stopped, who has confirmed or rejected it, and each change of the brake, oldest
first: when, by whom and why. BY is user@host, "policy NAME" or "pruner", as
bctl was told. LOGIN is the user whom the database has authenticated: in a
locked-down fleet, the name in the certificate.`,
		Example: `  bctl log --since 7d
  bctl log --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error { return a.printLog(cmd.Context(), i, since) })
		},
	}
	sinceFlag(cmd.Flags(), &since, "since", "at or after `TIME`: 2006-01-02, RFC 3339, or 24h (ago)")
	a.wideFlag(cmd)
	return cmd
}

// logJSON is a line of log. The names are fixed.
type logJSON struct {
	ID      int64   `json:"id"`
	Time    *string `json:"time"`
	By      string  `json:"by"`
	Login   string  `json:"login"`   // whom the database has authenticated; empty on one machine
	Action  string  `json:"action"`  // forget, hold, release, retire, mark-bad, mark-good, stop, confirm, reject, brake, purge or purged
	Subject string  `json:"subject"` // such as a snapshot's id
	Reason  string  `json:"reason"`
}

func (a *app) printLog(ctx context.Context, i index.Index, since time.Time) error {
	shards, err := shardsByID(ctx, i)
	if err != nil {
		return err
	}
	if since.IsZero() {
		since = time.UnixMicro(0)
	}
	var entries []*index.LogEntry
	for e, err := range i.Log(ctx, since) {
		if err != nil {
			return err
		}
		e.Subject = namedSubject(e.Subject, shards)
		entries = append(entries, &e)
	}
	columns := logTable
	if !slices.ContainsFunc(entries, func(e *index.LogEntry) bool { return e.Login != "" }) { // on one machine
		columns = slices.DeleteFunc(slices.Clone(columns), func(c column[*index.LogEntry]) bool { return c.name == "LOGIN" })
	}
	return printList(a, entries, columns, func(e *index.LogEntry) logJSON {
		return logJSON{e.ID, jsonTime(e.Time), e.By, e.Login, e.Action, e.Subject, e.Reason}
	})
}

// shardsByID returns all shards, retired ones too.
func shardsByID(ctx context.Context, i index.Catalog) (map[backup.ShardID]*index.ShardStatus, error) {
	shards, err := i.ListShards(ctx, index.ShardFilter{Retired: true})
	if err != nil {
		return nil, err
	}
	byID := make(map[backup.ShardID]*index.ShardStatus, len(shards))
	for n := range shards {
		byID[shards[n].ID] = &shards[n]
	}
	return byID, nil
}

// namedSubject returns the subject of an entry with the name of a shard, FILER/SHARD, in place of its
// number.
func namedSubject(subject string, shards map[backup.ShardID]*index.ShardStatus) string {
	number, is := strings.CutPrefix(subject, "shard ")
	id, err := strconv.ParseInt(number, 10, 64)
	if s := shards[backup.ShardID(id)]; is && err == nil && s != nil {
		return "shard " + s.Filer.Name + "/" + strings.TrimPrefix(s.Name, "/")
	}
	return subject
}

// shortSubject shortens the id of a snapshot.
func shortSubject(subject string) string {
	if id, err := backup.ParseSnapshotID(subject); err == nil {
		return "snapshot " + id.Short()
	}
	return subject
}

var logTable = table[*index.LogEntry]{
	{name: "TIME", text: func(e *index.LogEntry) string { return zoned(e.Time) }, brief: func(e *index.LogEntry) string { return shortTime(e.Time) }},
	{name: "BY", text: func(e *index.LogEntry) string { return display(e.By) }, cut: truncate, useful: usefulPath},
	{name: "LOGIN", text: func(e *index.LogEntry) string { return display(e.Login) }, cut: truncate, useful: usefulPath, leave: 2},
	{name: "ACTION", text: func(e *index.LogEntry) string { return e.Action }},
	{name: "SUBJECT", text: func(e *index.LogEntry) string { return display(shortSubject(e.Subject)) }, cut: truncate, useful: usefulPath},
	{name: "REASON", text: func(e *index.LogEntry) string { return display(e.Reason) }, cut: truncate, useful: usefulPath, leave: 1},
}
