package e2e_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// A cost is what a fleet's servers have had to do so far.
type cost struct {
	messages, messageBytes uint64 // in streams; to the server in all, with acknowledgements and reports
	walBytes               int64
	pages, chunks, packs   int64 // rows
}

func costSoFar(t *testing.T, f *fleet.Fleet, js jetstream.JetStream) (c cost) {
	t.Helper()
	for stream := range queues {
		s, err := js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		c.messages += s.CachedInfo().State.LastSeq
	}
	response, err := http.Get(f.NATS.MonitorURL + "/varz")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var varz struct {
		InBytes uint64 `json:"in_bytes"`
	}
	if err := json.NewDecoder(response.Body).Decode(&varz); err != nil {
		t.Fatal(err)
	}
	c.messageBytes = varz.InBytes
	c.walBytes = f.Index.Count("SELECT (pg_current_wal_lsn() - '0/0')::bigint")
	for table, n := range map[string]*int64{"pages": &c.pages, "chunks": &c.chunks, "packs": &c.packs} {
		*n = f.Index.Count("SELECT count(*) FROM " + table)
	}
	return c
}

func (c cost) since(before cost) cost {
	return cost{
		messages: c.messages - before.messages, messageBytes: c.messageBytes - before.messageBytes, walBytes: c.walBytes - before.walBytes,
		pages: c.pages - before.pages, chunks: c.chunks - before.chunks, packs: c.packs - before.packs,
	}
}

// The cost of a snapshot in NATS and Postgres depends on what has changed, and hardly on the size
// of the tree. docs/architecture.md uses these figures.
func TestCostOfASnapshot(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{OwnPostgres: true}), filepath.Join(t.TempDir(), "tree")
	generate(t, tree, 97, shape{directories: 500, files: 20, meanBytes: 1000})
	settle(t)
	js := connect(t, f)
	awaitQueues(t, js)
	// After a checkpoint, the log has a full image of each page that changes. A checkpoint before
	// each backup makes the figures repeatable.
	backUp := func() (cost, fleet.Work) {
		t.Helper()
		if _, err := f.Index.DB().Exec("CHECKPOINT"); err != nil {
			t.Fatal(err)
		}
		before := costSoFar(t, f, js)
		backup, id := f.StartBackup(tree)
		expect(t, backup.Wait(), 0)
		return costSoFar(t, f, js).since(before), f.Index.WorkOf(id)
	}
	first, work := backUp()
	t.Logf("10,000 files in 500 directories, all new: %+v; %+v", first, work)
	// A busy machine adds to the log and the messages: renewed leases, reports, autovacuum. So
	// what a snapshot costs is what the cheapest of up to three takes. The rows are the same in
	// each.
	cheapest := func(what string, change func(), rows cost, maxWAL int64, maxMessages uint64) {
		t.Helper()
		for tries := 1; ; tries++ {
			change()
			c, work := backUp()
			t.Logf("%s: %+v; %+v", what, c, work)
			if c.pages != rows.pages || c.chunks != rows.chunks || rows.chunks == 0 && c.packs != 0 {
				t.Fatalf("a snapshot with %s: %+v", what, c)
			}
			if c.walBytes <= maxWAL && c.messages <= maxMessages {
				return
			}
			if tries == 3 {
				t.Errorf("a snapshot with %s: %+v", what, c)
				return
			}
		}
	}
	cheapest("nothing changed", func() {}, cost{}, first.walBytes/4, 120)
	m := &mutator{t: t, dir: tree}
	m.look()
	changes := 0
	cheapest("100 files changed, in 100 directories", func() {
		changes++
		for i := 0; i < len(m.files); i += 100 { // one file in every fifth directory
			if err := os.WriteFile(m.files[i], []byte(fmt.Sprint("changed ", changes, " ", i)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		settle(t)
	}, cost{pages: 100, chunks: 100}, first.walBytes*2/3, math.MaxUint64)
}
