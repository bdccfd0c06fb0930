package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv"
	"github.com/bctl/bctl/internal/testenv/testtarget"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// watchedCommitter starts a committer with metrics, and returns where they are.
func watchedCommitter(t *testing.T, f *fleet.Fleet) (c *fleet.Service, metrics string) {
	t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return f.Service("committer", "BCTL_HTTP_LISTEN="+address), "http://" + address + "/metrics"
}

func get(url string) (body string, err error) {
	response, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	return string(raw), err
}

// count is the sum of the samples of a metric that have all these labels.
func count(t *testing.T, metrics, name string, labels ...string) (sum float64) {
	t.Helper()
	body, err := get(metrics)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		sample, value := line[:strings.LastIndexByte(line, ' ')+1], line[strings.LastIndexByte(line, ' ')+1:]
		if !strings.HasPrefix(sample, name+"{") && sample != name+" " {
			continue
		}
		has := true
		for _, label := range labels {
			has = has && strings.Contains(sample, label)
		}
		if n, err := strconv.ParseFloat(value, 64); has && err == nil {
			sum += n
		}
	}
	return sum
}

// A recorder keeps all messages of a fleet, and can send them again.
type recorder struct {
	t  *testing.T
	js jetstream.JetStream

	mu       sync.Mutex
	messages []*nats.Msg
	twice    bool // each is sent again as soon as it was heard
}

const replayed = "Replayed"

func record(t *testing.T, f *fleet.Fleet) *recorder {
	t.Helper()
	r := &recorder{t: t, js: connect(t, f)}
	subscription, err := r.js.Conn().Subscribe("bctl.v1.*.*", r.hear)
	if err != nil {
		t.Fatal(err)
	}
	if err := subscription.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *recorder) hear(m *nats.Msg) {
	if m.Header.Get(replayed) != "" {
		return
	}
	again := nats.NewMsg(m.Subject)
	again.Data = bytes.Clone(m.Data)
	again.Header.Set(replayed, "yes")
	r.mu.Lock()
	r.messages = append(r.messages, again)
	twice := r.twice
	r.mu.Unlock()
	if twice {
		_ = r.js.Conn().PublishMsg(again) // the stream takes it as it does any other
	}
}

// sendAtOnce has each message sent again as soon as it is heard, from now on.
func (r *recorder) sendAtOnce() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.twice = true
}

// of returns what was heard on subjects that begin with prefix.
func (r *recorder) of(prefix string) (list []*nats.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.messages {
		if strings.HasPrefix(m.Subject, prefix) {
			list = append(list, m)
		}
	}
	return list
}

// sendAgain sends all messages of these subjects once more.
func (r *recorder) sendAgain(prefixes ...string) {
	r.t.Helper()
	for _, prefix := range prefixes {
		for _, m := range r.of(prefix) {
			if err := r.send(m); err != nil {
				r.t.Errorf("%s: %v", m.Subject, err)
			}
		}
	}
}

// send publishes a message. Only queues acknowledge it.
func (r *recorder) send(m *nats.Msg) error {
	for _, queue := range []string{"bctl.v1.walk.", "bctl.v1.read.", "bctl.v1.commit."} {
		if strings.HasPrefix(m.Subject, queue) {
			_, err := r.js.PublishMsg(r.t.Context(), m)
			return err
		}
	}
	return r.js.Conn().PublishMsg(m)
}

// awaitDone waits until nobody has a message of any queue left to handle.
func awaitDone(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	fleet.Await(t, "empty queues", func() bool {
		for stream, name := range queues {
			c, err := js.Consumer(t.Context(), stream, name)
			if err != nil || c.CachedInfo().NumPending+uint64(c.CachedInfo().NumAckPending) > 0 {
				return false
			}
		}
		return true
	})
}

// tables is what the index has of what was backed up, as text.
func tables(t *testing.T, f *fleet.Fleet) string {
	t.Helper()
	var all strings.Builder
	for _, query := range []string{
		"SELECT concat_ws(' ', id, number, state, files, bytes, new_bytes, stored_bytes, errors) FROM snapshots ORDER BY id",
		"SELECT concat_ws(' ', directory, page, first_snapshot, last_snapshot, md5(listing)) FROM pages ORDER BY 1",
		"SELECT concat_ws(' ', pack, snapshot, stored_bytes, chunks) FROM packs ORDER BY 1",
		"SELECT concat_ws(' ', id, pack, frame, frame_offset, length) FROM chunks ORDER BY 1",
		"SELECT concat_ws(' ', id, state) FROM snapshots ORDER BY 1",
		"SELECT concat_ws(' ', snapshot_id, id) FROM walk_tasks ORDER BY 1",
		"SELECT concat_ws(' ', snapshot_id, id) FROM read_batches ORDER BY 1",
	} {
		all.WriteString(strings.Join(texts(t, f.Index, query), "\n") + "\n")
	}
	return all.String()
}

// texts are the rows of a query that have one text each.
func texts(t *testing.T, x *fleet.Index, query string) (list []string) {
	t.Helper()
	rows, err := x.DB().Query(query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		list = append(list, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return list
}

// Every message, tasks included, may be sent again, at once or after the snapshot: nothing changes.
func TestReplayedMessages(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	f, tree := fleet.New(t, fleet.Options{Walkers: 1, Readers: 1, Committers: -1}), filepath.Join(t.TempDir(), "tree")
	_, metrics := watchedCommitter(t, f)
	generate(t, tree, 23, shape{directories: 80, files: 4, meanBytes: 3000})
	settle(t)
	r := record(t, f)
	awaitQueues(t, r.js)
	r.sendAtOnce()
	backup, first := f.StartBackup(tree)
	check(t, f, backup.Wait(), tree)
	for _, kind := range []string{"walk", "read", "commit.slice", "commit.pack", "commit.batch"} {
		if len(r.of("bctl.v1."+kind)) == 0 {
			t.Errorf("no message of bctl.v1.%s was heard, and none sent again", kind)
		}
	}
	awaitDone(t, r.js)

	before := tables(t, f)
	late := count(t, metrics, "bctl_results_total", `outcome="late"`)
	sent := len(r.of("bctl.v1."))
	r.sendAgain("bctl.v1.")
	awaitDone(t, r.js)
	if after := tables(t, f); after != before {
		t.Errorf("the messages of a snapshot that is committed have changed the index:\n%s\n%s", before, after)
	}
	// A task that comes again is walked again, and its result is late as well.
	if now := count(t, metrics, "bctl_results_total", `outcome="late"`); now < late+float64(len(r.of("bctl.v1.commit."))) {
		t.Errorf("%v results were late before %d messages came again, and %v after", late, sent, now)
	}

	// The messages of one snapshot come while another one runs.
	if err := os.WriteFile(filepath.Join(tree, "new"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	settle(t)
	second, _ := f.StartBackup(tree)
	r.sendAgain("bctl.v1.")
	check(t, f, second.Wait(), tree)
	restored := f.Restore(first)
	if _, err := os.Stat(filepath.Join(restored, "new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the first snapshot has what was made after it: %v", err)
	}
}

// A forger knows how messages look, and may send to any subject.
type forger struct {
	t       *testing.T
	f       *fleet.Fleet
	js      jetstream.JetStream
	conn    *flow.Conn
	metrics string
	log     *fleet.Service
}

// refused fails the test unless sending ends in one more result of this outcome, or one more
// message that was dropped.
func (g *forger) refused(what, outcome string, send func() error) {
	g.t.Helper()
	if outcome == "dropped" {
		before := g.dropped()
		g.send(what, send)
		fleet.Await(g.t, what+" to be dropped", func() bool { return g.dropped() > before })
		return
	}
	label := fmt.Sprintf("outcome=%q", outcome)
	before := count(g.t, g.metrics, "bctl_results_total", label)
	g.send(what, send)
	fleet.Await(g.t, what+" to be "+outcome, func() bool { return count(g.t, g.metrics, "bctl_results_total", label) > before })
}

func (g *forger) send(what string, send func() error) {
	g.t.Helper()
	if err := send(); err != nil {
		g.t.Errorf("%s: %v", what, err)
	}
}

// dropped counts what was dropped, or handed back because a newer version might know it.
func (g *forger) dropped() int {
	return int(count(g.t, g.metrics, "bctl_messages_dropped_total")) + strings.Count(g.wholeLog(), "message handed back")
}

func (g *forger) wholeLog() string {
	g.t.Helper()
	text, err := os.ReadFile(g.log.LogFile())
	if err != nil {
		g.t.Fatal(err)
	}
	return string(text)
}

func forged[T any](g *forger, hop flow.Hop[T], message *T) func() error {
	return func() error { return flow.Publish(g.t.Context(), g.conn, hop, message) }
}

func (g *forger) raw(subject string, data []byte) func() error {
	return func() error {
		_, err := g.js.Publish(g.t.Context(), subject, data)
		return err
	}
}

// open returns the open work of a snapshot: the newest of a table.
func (g *forger) open(table string, snapshot backup.SnapshotID) (id int64, attempt int32) {
	g.t.Helper()
	fleet.Await(g.t, "open work in "+table, func() bool {
		row := g.f.Index.DB().QueryRow("SELECT id, attempt FROM "+table+" WHERE snapshot_id = $1::uuid AND attempt > 0 ORDER BY id LIMIT 1", snapshot.String())
		return row.Scan(&id, &attempt) == nil
	})
	return id, attempt
}

func (g *forger) begin(args ...string) (*fleet.Running, backup.SnapshotID) {
	g.t.Helper()
	running, text := g.f.StartBackupOf(args...)
	id, err := backup.ParseSnapshotID(text)
	if err != nil {
		g.t.Fatal(err)
	}
	return running, id
}

// lyingListing claims columns of 4 GiB.
var lyingListing = []byte{1, 0, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3}

// All forged results are refused, and counted or logged. The snapshot is committed, and restores
// equal.
func TestForgedMessages(t *testing.T) {
	t.Parallel()
	f := fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1})
	tree, elsewhere := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "elsewhere")
	generate(t, tree, 24, shape{directories: 5, files: 5, meanBytes: 1000})
	generate(t, elsewhere, 25, shape{directories: 2, files: 2, meanBytes: 1000})
	settle(t)
	conn, err := flow.Connect(flow.Options{URL: f.NATSURL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	g := &forger{t: t, f: f, js: connect(t, f), conn: conn}
	f.Filer("nas")
	f.Shard("nas", tree)
	f.Filer("far", "--site", "paris") // before there is a keeper, who looks for new sites every five seconds
	f.Shard("far", elsewhere)
	g.log, g.metrics = watchedCommitter(t, f)
	awaitQueues(t, g.js)
	here, snapshot := g.begin("--filer", "nas")
	there, far := g.begin("--filer", "far")

	t.Run("slices", func(t *testing.T) { g.t = t; g.forgeSlices(snapshot, far) })
	t.Run("garbage", func(t *testing.T) { g.t = t; g.sendGarbage() })
	g.t = t
	r := record(t, f)
	f.Service("walker")
	g.open("read_batches", snapshot)
	t.Run("packs", func(t *testing.T) { g.t = t; g.forgePacks(snapshot) })
	t.Run("batches", func(t *testing.T) { g.t = t; g.forgeBatches(r, snapshot, far) })

	f.Service("reader")
	f.Service("walker", "BCTL_WORKER_SITE=paris")
	f.Service("reader", "BCTL_WORKER_SITE=paris")
	for tree, running := range map[string]*fleet.Running{tree: here, elsewhere: there} {
		treetest.Equal(t, tree, f.Restore(running.Wait().Summary(t).Snapshot))
	}
	f.Index.CheckSettled()
	// Each refusal says why.
	for _, reason := range []string{
		`task \d+ is another snapshot's`, `attempt 99 at task \d+ has not been made`, `source of task \d+ is no snapshot of the shard's`,
		`removal of the root`, `listing: cut short`, `batch \d+ is another snapshot's`, `attempt 99 at batch \d+ has not been made`,
		`pages are not those of batch \d+`, `packs/[0-9a-f]+/[0-9a-f]+ has 2 bytes, and is said to have 3`, `packs/[0-9a-f]+/[0-9a-f]+: not found`,
	} {
		if !regexp.MustCompile(`(?m)result refused.*` + reason).MatchString(g.wholeLog()) {
			t.Errorf("the committer's log does not give the reason %q", reason)
		}
	}
	if !strings.Contains(g.wholeLog(), "message dropped") {
		t.Error("the committer's log does not tell of messages that were dropped")
	}
}

func (g *forger) forgeSlices(snapshot, far backup.SnapshotID) {
	id, attempt := g.open("walk_tasks", snapshot)
	farTask, _ := g.open("walk_tasks", far)
	slice := func(change func(*backup.SliceWalked)) func() error {
		s := &backup.SliceWalked{Snapshot: snapshot, Task: backup.TaskID(id), Attempt: attempt, Last: true}
		change(s)
		return forged(g, flow.Slices, s)
	}
	g.refused("a task of another site", "refused", slice(func(s *backup.SliceWalked) { s.Task = backup.TaskID(farTask) }))
	g.refused("another snapshot, of another site", "refused", slice(func(s *backup.SliceWalked) { s.Snapshot = far }))
	g.refused("a snapshot that nobody began", "late", slice(func(s *backup.SliceWalked) { s.Snapshot = backup.NewSnapshotID() }))
	g.refused("a task that there is not", "late", slice(func(s *backup.SliceWalked) { s.Task = 4711 }))
	g.refused("an attempt that was not made", "refused", slice(func(s *backup.SliceWalked) { s.Attempt = 99 }))
	g.refused("no attempt", "refused", slice(func(s *backup.SliceWalked) { s.Attempt = 0 }))
	g.refused("another source", "refused", slice(func(s *backup.SliceWalked) { s.Source = "posix:///etc" }))
	g.refused("removal of the root", "refused", slice(func(s *backup.SliceWalked) { s.Removed = []string{""} }))
	g.refused("a path that leads outside", "dropped", slice(func(s *backup.SliceWalked) { s.Removed = []string{"a/../../b"} }))
	g.refused("part 5000", "refused", slice(func(s *backup.SliceWalked) { s.Part = 5000 }))
	g.refused("a batch without pages", "dropped", slice(func(s *backup.SliceWalked) { s.Batches = []backup.PagesToRead{{}} }))
	g.refused("negative counts", "refused", slice(func(s *backup.SliceWalked) { s.Counts.Files = -1 }))
	lying := []backup.PageVersion{{Path: "d", Listing: lyingListing}}
	g.refused("a page that lies about its length", "refused", slice(func(s *backup.SliceWalked) { s.Pages = lying }))
	g.refused("a page to read that lies about its length", "refused", slice(func(s *backup.SliceWalked) { s.Batches = []backup.PagesToRead{{Pages: lying}} }))
}

func (g *forger) sendGarbage() {
	for _, subject := range []string{flow.Slices.Subject, flow.Packs.Subject, flow.Lists.Subject, flow.Batches.Subject} {
		g.refused("garbage at "+subject, "dropped", g.raw(subject, []byte("\xff\xfe garbage \x00")))
		g.refused("nothing at "+subject, "dropped", g.raw(subject, nil))
	}
	g.refused("a subject that is no hop's", "dropped", g.raw("bctl.v1.commit.other", []byte{1}))
	g.refused("a message above the limit", "dropped", g.raw(flow.Slices.Subject, make([]byte, flow.MaxMessageBytes+1)))
	// A still larger message does not even enter the queue.
	var refusal *jetstream.APIError
	if err := g.raw(flow.Slices.Subject, make([]byte, flow.MaxMessageBytes+64<<10))(); !errors.As(err, &refusal) {
		g.t.Errorf("a message that is larger than the stream takes: %v", err)
	}
	if err := g.js.Conn().Publish(flow.Slices.Subject, make([]byte, 64<<20)); !errors.Is(err, nats.ErrMaxPayload) {
		g.t.Errorf("a message of 64 MiB: %v", err)
	}
}

func (g *forger) forgePacks(snapshot backup.SnapshotID) {
	pack := func(stored int64, length uint32) (*backup.PackStored, func() error) {
		p := &backup.PackStored{
			Snapshot: snapshot, Pack: backup.NewPackID(), StoredBytes: stored, FrameBytes: []uint32{1},
			Chunks: []backup.ChunkPlace{{ID: backup.ChunkID{7}, Length: length}},
		}
		return p, forged(g, flow.Packs, p)
	}
	_, missing := pack(3, 1)
	g.refused("a pack that is not in the store", "refused", missing)
	other, send := pack(3, 1)
	directory := filepath.Join(g.f.StoreDir(), "packs", snapshot.String())
	if err := os.MkdirAll(directory, 0o755); err != nil {
		g.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, other.Pack.String()), []byte{1, 2}, 0o644); err != nil {
		g.t.Fatal(err)
	}
	g.refused("a pack of another length", "refused", send)
	long, send := pack(2, 1<<31)
	if err := os.WriteFile(filepath.Join(directory, long.Pack.String()), []byte{1, 2}, 0o644); err != nil {
		g.t.Fatal(err)
	}
	g.refused("a chunk of 2 GiB", "refused", send)
	if n := g.f.Index.Count("SELECT count(*) FROM chunks"); n != 0 {
		g.t.Errorf("%d chunks of packs that are not there were registered", n)
	}
}

// whole is a page as if all that was to be read had been empty.
func whole(t *testing.T, v backup.PageVersion) backup.PageVersion {
	t.Helper()
	page, err := listing.DecodePage(v)
	if err != nil {
		t.Fatal(err)
	}
	const wanted = backup.Wanted | backup.XattrsWanted
	if page.Self != nil {
		page.Self.Flags &^= wanted
	}
	for i := range page.Entries {
		if e := &page.Entries[i]; e.Flags&wanted != 0 {
			e.Flags, e.Size, e.Content = e.Flags&^wanted, 0, backup.Content{}
		}
	}
	if v.Listing, err = listing.Encode(nil, &page); err != nil {
		t.Fatal(err)
	}
	return v
}

func (g *forger) forgeBatches(r *recorder, snapshot, far backup.SnapshotID) {
	id, attempt := g.open("read_batches", snapshot)
	var asked bctlv1.ReadBatch
	fleet.Await(g.t, "the batch on its way", func() bool {
		for _, m := range r.of("bctl.v1.read.") {
			if proto.Unmarshal(m.Data, &asked) == nil && asked.GetBatch() == id {
				return true
			}
		}
		return false
	})
	batch := func(change func(*backup.BatchStored)) func() error {
		b := &backup.BatchStored{Snapshot: snapshot, Batch: backup.BatchID(id), Attempt: attempt}
		for _, p := range asked.GetPages() {
			b.Pages = append(b.Pages, whole(g.t, backup.PageVersion{Path: string(p.GetPath()), Key: backup.PageKey(p.GetKey()), Listing: p.GetListing()}))
		}
		change(b)
		return forged(g, flow.Batches, b)
	}
	g.refused("another snapshot, of another site", "refused", batch(func(b *backup.BatchStored) { b.Snapshot = far }))
	g.refused("a snapshot that nobody began", "late", batch(func(b *backup.BatchStored) { b.Snapshot = backup.NewSnapshotID() }))
	g.refused("a batch that there is not", "late", batch(func(b *backup.BatchStored) { b.Batch = 4711 }))
	g.refused("an attempt that was not made", "refused", batch(func(b *backup.BatchStored) { b.Attempt = 99 }))
	g.refused("pages of another directory", "refused", batch(func(b *backup.BatchStored) { b.Pages[0].Path = "another" }))
	g.refused("a page that lies about its length", "refused", batch(func(b *backup.BatchStored) { b.Pages[0].Listing = lyingListing }))
	g.refused("a path that leads outside", "dropped", batch(func(b *backup.BatchStored) { b.Pages[0].Path = "../b" }))
	g.refused("a pack that nobody registered", "early", batch(func(b *backup.BatchStored) { b.ReliesOn = []backup.PackID{backup.NewPackID()} }))
	if state := g.f.Index.WorkOf(snapshot.String()); state.BatchesSettled != 0 {
		g.t.Errorf("a forged result has settled a batch: %+v", state)
	}
}
