package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
)

// A command that follows snapshots reports once per reason that their work is handed back.
func TestLookoutReportsHandBacks(t *testing.T) {
	var stderr strings.Builder
	mine := map[backup.SnapshotID]string{{1}: "nas1 /a", {2}: "nas1 /b"}
	l := &lookout{app: &app{term: &terminal{err: &stderr}}, sites: []string{"oslo"}, snapshots: mine}
	look := func(backs ...flow.HandBack) {
		services := serving("committer - c1", "walker oslo w1", "reader oslo r1")
		services[2].HandBacks = backs
		l.look(&crew{asked: true, services: services})
	}
	both := []backup.SnapshotID{{1}, {2}, {3}}
	look()
	look(flow.HandBack{Why: "EIO", Snapshots: []backup.SnapshotID{{3}}}, flow.HandBack{Snapshots: both}) // of others, and for no known reason
	look(flow.HandBack{Why: "the inode is 1", Snapshots: both})
	look(flow.HandBack{Why: "the inode is 2", Snapshots: both})
	look(flow.HandBack{Why: "EIO\nmore", Snapshots: both[:1]})
	want := "bctl: note: reader r1 at site oslo has handed back work of nas1 /a, nas1 /b, for any reader to take: the inode is 1\n" +
		"bctl: note: reader r1 at site oslo has handed back work of nas1 /a, for any reader to take: EIO\n"
	if stderr.String() != want {
		t.Errorf("%s\nwant:\n%s", stderr.String(), want)
	}
}

// Each reason why a worker has handed work back has its line. The others are counted together.
func TestReasonsOfHandBacks(t *testing.T) {
	services := serving("reader oslo r1", "reader oslo r2")
	services[0].HandedBack, services[0].HandedBackWhy = 9, "EIO"
	services[0].HandBacks = []flow.HandBack{{Why: "is it mounted?", Times: 4, Unseen: true}, {Why: "EIO", Times: 2}, {Times: 1, Unseen: true}, {Times: 2}}
	services[1].HandedBack, services[1].HandedBackWhy = 3, "EIO" // of an earlier version
	want := []string{
		"reader r1 (4 times): handed work back: is it mounted?",
		"reader r1 (2 times), reader r2 (3 times): handed work back: EIO",
		"reader r1 (3 times): handed work back: more reasons",
	}
	if got := reasonLines(services); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
