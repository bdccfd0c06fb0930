package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
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
		Short: "Show who forgot or held snapshots, and who changed policies",
		Long: `Shows each forgotten snapshot, each hold that was added (hold) or removed
(release), each mark of a bad snapshot, each retired filer or shard, each change
of a policy, each deletion that the brake has stopped, each confirmation or
rejection of one, each change of the brake, each purge, and each repair, oldest
first.

BY is user@host, "policy NAME" or "pruner". The process that made the entry
states it, and nothing verifies it. LOGIN is the user whom the database has
authenticated: in a locked-down fleet, the name in the certificate.

The entries of one hold have the same subject, which begins with its number.
checked means that a snapshot was about to be forgotten, and that a hold on a
file does not need it. policy shows the rules before and after the change.`,
		Example: `  bctl log --since 7d
  bctl log --json`,
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withIndex(cmd.Context(), toRead, func(i index.Index) error { return a.printLog(cmd.Context(), i, since) })
		},
	}
	sinceFlag(cmd.Flags(), &since, "since", "at or after `TIME`: "+sinceForms)
	a.wideFlag(cmd)
	return cmd
}

// logJSON is a line of log. The names are fixed.
type logJSON struct {
	ID      int64   `json:"id"`
	Time    *string `json:"time"`
	By      string  `json:"by"`
	Login   string  `json:"login"`   // whom the database has authenticated; empty on one machine
	Action  string  `json:"action"`  // as in index.LogEntry
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

// namedSubject returns the subject of an entry with the name of a shard, FILER/SHARD, in place of
// its number: of "shard 7" and of "hold 3 shard 7".
func namedSubject(subject string, shards map[backup.ShardID]*index.ShardStatus) string {
	before, number, is := strings.Cut(" "+subject, " shard ")
	id, err := strconv.ParseInt(number, 10, 64)
	if s := shards[backup.ShardID(id)]; is && err == nil && s != nil {
		return strings.TrimPrefix(before+" shard "+s.Filer.Name+"/"+strings.TrimPrefix(s.Name, "/"), " ")
	}
	return subject
}

// shortSubject shortens the id of a snapshot: of "3f2a…" and of "hold 3 snapshot 3f2a…".
func shortSubject(subject string) string {
	before, id, _ := strings.Cut(subject, " snapshot ")
	if id == "" {
		before, id = "", subject
	}
	if id, err := backup.ParseSnapshotID(id); err == nil {
		return strings.TrimPrefix(before+" snapshot "+id.Short(), " ")
	}
	return subject
}

// shownReason returns the reason of an entry for people: of a change of a policy, what has changed.
func shownReason(e *index.LogEntry) string {
	var c index.PolicyChange
	if e.Action != "policy" || json.Unmarshal([]byte(e.Reason), &c) != nil {
		return e.Reason
	}
	switch {
	case c.Was == nil && c.Is == nil:
		return e.Reason
	case c.Was == nil:
		return "created; " + rulesOf(c.Is)
	case c.Is == nil:
		return "removed; it was: " + rulesOf(c.Was)
	}
	var changed []string
	for _, setting := range []struct{ name, was, is string }{
		{"rules", rulesOf(c.Was), rulesOf(c.Is)},
		{"labels", labelText(c.Was.Labels), labelText(c.Is.Labels)},
		{"schedule", c.Was.Schedule, c.Is.Schedule},
		{"time zone", cmp.Or(c.Was.TimeZone, "UTC"), cmp.Or(c.Is.TimeZone, "UTC")},
		{"paused", strconv.FormatBool(c.Was.Paused), strconv.FormatBool(c.Is.Paused)},
	} {
		if setting.was != setting.is {
			changed = append(changed, fmt.Sprintf("%s: %s, before: %s", setting.name, setting.is, setting.was))
		}
	}
	return strings.Join(changed, "; ")
}

func rulesOf(p *index.LoggedPolicy) string { return p.Retention.String() }

var logTable = table[*index.LogEntry]{
	{name: "TIME", text: func(e *index.LogEntry) string { return zoned(e.Time) }, brief: func(e *index.LogEntry) string { return shortTime(e.Time) }},
	{name: "BY", text: func(e *index.LogEntry) string { return display(e.By) }, cut: truncate, useful: usefulPath},
	{name: "LOGIN", text: func(e *index.LogEntry) string { return display(e.Login) }, cut: truncate, useful: usefulPath, leave: 2},
	{name: "ACTION", text: func(e *index.LogEntry) string { return e.Action }},
	{name: "SUBJECT", text: func(e *index.LogEntry) string { return display(shortSubject(e.Subject)) }, cut: truncate, useful: usefulPath},
	{name: "REASON", text: func(e *index.LogEntry) string { return display(shownReason(e)) }, cut: truncate, useful: usefulPath, leave: 1},
}
