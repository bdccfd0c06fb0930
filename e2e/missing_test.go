package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
)

// missing returns what status says is missing, and what waits: as in JSON, and for people.
func missing(t *testing.T, f *fleet.Fleet) (lacks, waits []string) {
	t.Helper()
	first, _, _ := strings.Cut(f.Must("status", "--json").Stdout, "\n")
	var o struct {
		Missing []struct{ What, Site, Text string }
		Waiting []struct {
			Cause, Why string
			Filers     []string
		}
	}
	if err := json.Unmarshal([]byte(first), &o); err != nil {
		t.Fatalf("%v: %s", err, first)
	}
	for _, l := range o.Missing {
		lacks = append(lacks, strings.TrimSpace(l.What+" "+l.Site))
	}
	for _, w := range o.Waiting {
		waits = append(waits, w.Cause+" "+strings.Join(w.Filers, " ")+": "+w.Why)
	}
	return lacks, waits
}

// A backup without services reports what it waits for, and continues as soon as that is available.
func TestBackupSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: -1, Committers: -1})
	tree := t.TempDir()
	if err := os.WriteFile(filepath.Join(tree, "file"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.Filer("nas1")
	f.Shard("nas1", tree)
	backup, id := f.StartBackupOf("--filer", "nas1")
	const nobodyLeads, noReader = "bctl: note: no committer runs: no work is assigned", "bctl: note: no reader at site default"
	await := func(text string) {
		t.Helper()
		fleet.Await(t, text, func() bool { return backup.Ended() || strings.Contains(backup.Stderr(), text) })
		if backup.Ended() {
			t.Fatalf("the backup has ended: %s", backup.Wait())
		}
	}
	await(nobodyLeads)
	await(noReader)
	if lacks, _ := missing(t, f); !slices.Equal(lacks, []string{"committer", "reader default"}) {
		t.Errorf("status misses %q", lacks)
	}

	committer := f.Service("committer")
	fleet.Await(t, "the batch to wait for a reader", func() bool {
		lacks, waits := missing(t, f)
		return slices.Equal(lacks, []string{"reader default"}) && slices.Contains(waits, "workers nas1: no reader at site default")
	})
	text := f.Must("status").Stdout
	for _, want := range []string{"MISSING  no reader at site default\n", "\nnas1: 1 batch waits: no reader at site default\n", "(queued)", "waits: no reader at site default\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("status has no %q:\n%s", want, text)
		}
	}
	// Who comes and goes is noticed again.
	committer.Kill()
	fleet.Await(t, "the dead committer to be missed", func() bool { lacks, _ := missing(t, f); return slices.Contains(lacks, "committer") })
	fleet.Await(t, "that to be said again", func() bool { return strings.Count(backup.Stderr(), "note: no committer ") > 1 })
	committer.Restart()

	f.Service("reader")
	out := backup.Wait()
	expect(t, out, 0)
	if s := out.Summary(t); s.State != "committed" || s.Snapshot != id {
		t.Errorf("%+v", s)
	}
	if n := strings.Count(out.Stderr, noReader); n != 1 {
		t.Errorf("%q %d times, want once:\n%s", noReader, n, out.Stderr)
	}
	for line := range strings.Lines(out.Stdout) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
	fleet.Await(t, "nothing to be missing", func() bool { lacks, waits := missing(t, f); return len(lacks)+len(waits) == 0 })
}

// A backup that waits for a worker that an operator has drained says so, and so does status.
func TestStatusSaysWhoIsDrained(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: 1})
	tree := t.TempDir()
	if err := os.WriteFile(filepath.Join(tree, "file"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.Filer("nas1")
	f.Shard("nas1", tree)
	reader := f.Readers[0].Name
	fleet.Await(t, "nothing to be missing", func() bool { lacks, _ := missing(t, f); return len(lacks) == 0 })
	f.Must("worker", "drain", reader)
	backup, _ := f.StartBackupOf("--filer", "nas1")
	says := "no reader at site default takes work: " + reader + ": drained"
	fleet.Await(t, "the backup to say so", func() bool { return backup.Ended() || strings.Contains(backup.Stderr(), "bctl: note: "+says+"\n") })
	_, waits := missing(t, f)
	if text := f.Must("status").Stdout; !strings.HasPrefix(text, "MISSING  "+says+"\n") || !slices.Contains(waits, "workers nas1: "+says) {
		t.Errorf("%q\n%s", waits, text)
	}
	another := f.Service("reader")
	expect(t, backup.Wait(), 0)
	fleet.Await(t, "the drained reader to be named all the same", func() bool {
		return strings.HasPrefix(f.Must("status").Stdout, "WARNING  readers at site default: "+reader+": drained\n")
	})
	f.Must("worker", "undrain", reader)
	another.Retire()
	fleet.Await(t, "nothing to be missing", func() bool { lacks, _ := missing(t, f); return len(lacks) == 0 })
}

// A cancel that nobody does says so, too.
func TestCancelSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1})
	f.Filer("nas1")
	f.Shard("nas1", t.TempDir())
	f.Must("backup", "--filer", "nas1", "--detach")
	cancel := f.Start("cancel", "--all")
	fleet.Await(t, "what is missing", func() bool {
		return cancel.Ended() || strings.Contains(cancel.Stderr(), "bctl: note: no committer runs")
	})
	if strings.Contains(cancel.Stderr(), "site") {
		t.Errorf("it waits for no worker: %s", cancel.Stderr())
	}
	f.Service("committer")
	expect(t, cancel.Wait(), 0)
}

// backup --detach begins a snapshot at once while the store is away: only the services need it.
func TestDetachedWithoutAStore(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1, S3: true})
	f.Filer("nas1")
	f.Shard("nas1", t.TempDir())
	f.Env = append(f.Env, "BCTL_STORE_ENDPOINT=http://127.0.0.1:1")
	began := time.Now()
	out := f.Must("backup", "--filer", "nas1", "--detach")
	// store.retry is a minute.
	if took := time.Since(began); took > 30*time.Second || !strings.Contains(out.Stderr, "the services may wait for the store, too") {
		t.Errorf("after %v: %s", took, out)
	}
	if running := f.Index.Snapshots(); len(running) != 1 {
		t.Errorf("%d snapshots run, want 1", len(running))
	}
}

// Without NATS, status shows what the index says, and that nobody knows who is there.
func TestStatusWithoutNATS(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1})
	f.Filer("nas1")
	f.Shard("nas1", t.TempDir())
	f.Must("backup", "--filer", "nas1", "--detach")
	f.NATS.Stop()
	out := f.Must("status")
	if !strings.HasPrefix(out.Stdout, "MISSING  cannot list the services: nats ") || !strings.Contains(out.Stdout, " nas1 ") || out.Stderr != "" {
		t.Errorf("%s", out)
	}
}

// With no more rights than an operator's, over TLS, status knows who is there and who is not.
func TestOperatorSeesWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := fleet.NewLocked(t, fleet.Options{Walkers: 1, Readers: -1, Committers: 1})
	tree := t.TempDir()
	f.Filer("nas1")
	f.Shard("nas1", tree)
	fleet.Await(t, "the reader alone to be missing", func() bool { lacks, _ := missing(t, f); return slices.Equal(lacks, []string{"reader default"}) })
	f.Service("reader")
	fleet.Await(t, "nothing to be missing", func() bool { lacks, _ := missing(t, f); return len(lacks) == 0 })
}
