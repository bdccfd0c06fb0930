package e2e_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/blake3"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

const (
	day = 24 * time.Hour
	// blockedAfter is how long a command waits for paused ones, such as the owner of SQLite's lock,
	// before they go on.
	blockedAfter = 2 * time.Second
	historyTrees = 2
)

// A history is a random sequence of backups, restores, forgets and prunes, and what must come of
// it. Each command may be killed or paused at a random moment, and the clock moves. The decisions
// follow from the seed; how far a command is when it is killed does not.
type history struct {
	t      *testing.T
	seed   uint64
	random *rand.Rand
	client *fleet.Client
	dir    string
	lists  []string             // arguments that select the snapshots of this history in lists
	of     func(n int) []string // arguments that name a tree in a backup
	clock  func(time.Duration)  // moves the clock of the index
	// Of a fleet; on one machine there are none.
	faults  []func() string // of services
	settled func()          // waits until no snapshot of this history runs
	purging []string        // how the admin purges; nil: nobody does
	pruned  func()          // waits until the pruners have nothing to do
	byRoles bool            // operators may not prune
	most    time.Duration   // by which the clock moves

	trees  []*historyTree
	made   map[string]*madeSnapshot // by tag
	paused []*pausedCommand
	rules  int // forgets by rules that have not ended: any snapshot may go
	trace  []string
	tally  *tally
}

// A historyTree is a tree that is backed up.
type historyTree struct {
	dir  string
	busy int // backups of it that are paused: it must not change
}

// A madeSnapshot is what is expected of a snapshot, or of one that may have been committed.
type madeSnapshot struct {
	id        string // empty: not known to be committed
	tree      int
	content   map[string]string // as describe returns it
	hold      string            // id of the hold; empty: none
	bad       bool
	forgotten bool // certainly
	mayGo     bool // something may have forgotten it
}

// A pausedCommand goes on later, or is killed.
type pausedCommand struct {
	command *fleet.Running
	ended   func(out fleet.Output, killed bool)
}

// A tally counts what histories did.
type tally struct{ counts map[string]int }

func (c *tally) add(what string, n int) { c.counts[what] += n }

func (c *tally) addAll(other *tally) {
	for what, n := range other.counts {
		c.add(what, n)
	}
}

func (c *tally) String() string {
	var list []string
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		list = append(list, fmt.Sprintf("%d %s", c.counts[what], what))
	}
	return strings.Join(list, ", ")
}

// historiesFrom returns the seed of the first history, and how many there are.
func historiesFrom(t *testing.T, short, long int) (seed uint64, n int) {
	t.Helper()
	seed, n = rand.Uint64()>>16, short
	if testtarget.Runs(testtarget.Often) {
		n = long
	}
	if text := os.Getenv("E2E_HISTORIES"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("E2E_HISTORIES: %v", err)
		}
	}
	if text := os.Getenv("E2E_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatalf("E2E_SEED: %v", err)
		}
		if os.Getenv("E2E_HISTORIES") == "" {
			n = 1
		}
	}
	t.Logf("%d histories from seed %d: history i has the seed plus i; E2E_SEED=n repeats one", n, seed)
	return seed, n
}

func newHistory(t *testing.T, seed uint64, client *fleet.Client, dir string) *history {
	t.Helper()
	h := &history{
		t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 15)), client: client, dir: dir,
		made: map[string]*madeSnapshot{}, tally: &tally{map[string]int{"histories": 1}}, most: 30 * day, settled: func() {},
	}
	for n := range historyTrees {
		tree := &historyTree{dir: filepath.Join(dir, fmt.Sprint("tree", n))}
		h.must(os.MkdirAll(filepath.Join(tree.dir, "a", "b"), 0o755))
		h.trees = append(h.trees, tree)
		h.change(tree)
	}
	return h
}

func (h *history) must(err error) {
	h.t.Helper()
	if err != nil {
		h.fatalf("%v", err)
	}
}

// fatalf fails the test, with the seed and what has happened.
func (h *history) fatalf(format string, args ...any) {
	h.t.Helper()
	for _, line := range h.trace {
		h.t.Log(line)
	}
	h.t.Fatalf("E2E_SEED=%d: %s", h.seed, fmt.Sprintf(format, args...))
}

func (h *history) note(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf(format, args...))
}

// run makes some steps, and then compares everything that is left.
func (h *history) run() {
	h.t.Helper()
	for n := range h.trees {
		h.backup(n, true)
	}
	for range 5 + h.random.IntN(6) {
		h.tally.add("steps", 1)
		h.step()
	}
	h.goOn(true)
	h.settled()
	h.clockBack()
	h.checkAll()
	h.prune(true, "--max-unused", "0%", "--sweep")
	h.checkAll()
}

// purge removes a file from all snapshots of a tree. It may be killed, and then goes on.
func (h *history) purge() {
	h.t.Helper()
	h.goOn(true)
	h.settled()
	h.look()
	n := h.random.IntN(len(h.trees))
	name := filepath.Join([]string{"", "a", "a/b"}[h.random.IntN(3)], fmt.Sprint("file", h.random.IntN(4)))
	h.tally.add("purges", 1)
	args := append([]string{"purge", "--path", name, "--shard", h.trees[n].dir, "--reason", "test", "--yes"}, h.purging...)
	command, struck := h.client.Start(args...), false
	if h.random.IntN(2) == 0 {
		select {
		case <-command.Done():
		case <-time.After(time.Duration(h.random.IntN(4000)) * time.Millisecond):
			if struck = h.random.IntN(2) == 0; struck {
				h.tally.add("kills", 1)
				h.note("bctl purge: killed")
				command.Kill()
			} else {
				h.fault()
			}
		}
	}
	out := command.Wait()
	for tries := 0; struck || out.Status != 0; tries++ {
		if !struck && (strings.Contains(out.Stderr, "no snapshot") || strings.Contains(out.Stderr, "remove the hold first")) {
			return
		}
		if found := toConfirm.FindStringSubmatch(out.Stderr); !struck && found != nil {
			h.confirm(found[1])
		}
		if tries == 20 {
			h.fatalf("no purge ends: %s", out)
		}
		// What was killed goes on. Then the same purge finds nothing, or had not begun.
		again := h.client.Run(append([]string{"purge", "--resume"}, h.purging...)...)
		h.note("bctl purge --resume: %d %s", again.Status, again.Stderr)
		out, struck = h.client.Run(args...), false
		h.note("bctl purge: %d %s", out.Status, out.Stderr)
		if again.Status == 0 && strings.Contains(out.Stderr, "no snapshot") {
			break
		}
	}
	h.note("purged %s of tree %d", name, n)
	for _, made := range h.made {
		if made.tree == n {
			delete(made.content, name)
		}
	}
}

// step does one thing.
func (h *history) step() {
	h.t.Helper()
	switch n := h.random.IntN(20); {
	case n < 6:
		h.backup(h.random.IntN(len(h.trees)), false)
	case n < 10:
		h.forgetSome()
	case n < 13:
		h.prune(false, h.pruneArgs()...)
	case n < 14:
		h.restoreOne()
	case n < 15:
		h.hold()
	case n < 17:
		h.moveClock()
	case n < 18 && h.purging != nil:
		h.purge()
	case n < 19 && len(h.faults) > 0:
		h.fault()
	default:
		h.goOn(false)
	}
}

func (h *history) fault() {
	h.tally.add("faults of services", 1)
	h.note("%s", h.faults[h.random.IntN(len(h.faults))]())
}

// moveClock moves the clock by up to 30 days, often by exactly so many. In a fleet it moves by
// seconds: no service leads whose clock is off by more.
func (h *history) moveClock() {
	by := time.Duration(h.random.Int64N(int64(2*h.most))) - h.most
	if h.random.IntN(2) == 0 {
		by = []time.Duration{-h.most, 0, h.most}[h.random.IntN(3)]
	}
	h.note("clock: %v", by)
	h.tally.add("clock moves", 1)
	h.clock(by)
}

func (h *history) clockBack() {
	h.clock(0)
	h.note("clock: 0")
}

// fileContents are what files may have, so that many files share chunks, also across trees.
var fileContents = func() (list [][]byte) {
	random := rand.NewChaCha8([32]byte{15})
	for _, size := range []int{100, 3000, 3000, 20_000, 300_000, 300_000, 450_000, 450_000, 1_200_000, 2_500_000} {
		content := make([]byte, size)
		_, _ = random.Read(content) // it never fails
		list = append(list, content)
	}
	return list
}()

// change changes some files of a tree.
func (h *history) change(tree *historyTree) {
	h.t.Helper()
	if tree.busy > 0 {
		return
	}
	for range 1 + h.random.IntN(4) {
		path := filepath.Join(tree.dir, []string{"", "a", "a/b"}[h.random.IntN(3)], fmt.Sprint("file", h.random.IntN(4)))
		content := fileContents[h.random.IntN(len(fileContents))]
		switch h.random.IntN(6) {
		case 0:
			if err := os.Remove(path); err == nil || os.IsNotExist(err) {
				continue
			}
		case 1: // content that no other file has
			content = fmt.Appendf(slices.Clone(fileContents[3]), "%d", h.random.Uint64())
		}
		h.must(os.WriteFile(path, content, 0o644))
	}
}

// describe returns what a tree has: the kind, the mode, the time and the content of each entry.
func (h *history) describe(dir string) map[string]string {
	h.t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := fmt.Sprint(info.Mode(), " ", info.ModTime().UnixNano())
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %d %x", len(data), blake3.Sum256(data))
		}
		name, err := filepath.Rel(dir, path)
		found[name] = text
		return err
	})
	h.must(err)
	return found
}

// start runs a command, which may be killed or paused at a random moment. ended is called when it
// has ended, or was killed.
func (h *history) start(whole bool, ended func(out fleet.Output, killed bool), args ...string) {
	h.t.Helper()
	command := h.client.Start(args...)
	mode := h.random.IntN(6)
	after := time.Duration(h.random.IntN(120)) * time.Millisecond
	if whole || mode > 2 {
		out := h.wait(command)
		h.note("bctl %s: %d", strings.Join(args, " "), out.Status)
		ended(out, false)
		return
	}
	select {
	case <-command.Done():
	case <-time.After(after):
	}
	switch {
	case command.Ended():
		out := command.Wait()
		h.note("bctl %s: %d", strings.Join(args, " "), out.Status)
		ended(out, false)
	case mode == 0 || len(h.paused) >= 2:
		h.kill(command, ended)
	default:
		h.tally.add("pauses", 1)
		h.note("bctl %s: paused after %v", strings.Join(args, " "), after)
		command.Pause()
		h.paused = append(h.paused, &pausedCommand{command, ended})
	}
}

func (h *history) kill(command *fleet.Running, ended func(fleet.Output, bool)) {
	h.t.Helper()
	h.tally.add("kills", 1)
	command.Kill()
	out := command.Wait()
	h.note("bctl %s: killed", strings.Join(out.Args, " "))
	ended(out, true)
}

// wait waits for a command. If paused ones are in its way, they go on.
func (h *history) wait(command *fleet.Running) fleet.Output {
	h.t.Helper()
	select {
	case <-command.Done():
	case <-time.After(blockedAfter):
		for _, p := range h.paused {
			p.command.Resume()
		}
		if len(h.paused) > 0 {
			h.note("a command waits: all go on")
		}
	}
	return command.Wait()
}

// goOn lets paused commands go on to their ends, or kills them.
func (h *history) goOn(all bool) {
	h.t.Helper()
	for len(h.paused) > 0 {
		i := h.random.IntN(len(h.paused))
		p := h.paused[i]
		h.paused = slices.Delete(h.paused, i, i+1)
		if h.random.IntN(3) == 0 {
			h.kill(p.command, p.ended)
		} else {
			p.command.Resume()
			out := h.wait(p.command)
			h.note("bctl %s: %d, after a pause", strings.Join(out.Args, " "), out.Status)
			p.ended(out, false)
		}
		if !all {
			return
		}
	}
}

// expected fails unless a command ended with one of these statuses, or was killed.
func (h *history) expected(out fleet.Output, killed bool, statuses ...int) {
	h.t.Helper()
	if out.Status == 11 && len(h.paused) > 0 {
		return // the paused one may be checking the index alone, because another one was killed
	}
	if !killed && !slices.Contains(statuses, out.Status) {
		h.fatalf("%s", out)
	}
}

func (h *history) backup(n int, whole bool) {
	h.t.Helper()
	tree := h.trees[n]
	h.change(tree)
	tree.busy++
	tag := fmt.Sprintf("t%d-%d", n, len(h.made))
	made := &madeSnapshot{tree: n, content: h.describe(tree.dir)}
	h.made[tag] = made
	h.tally.add("backups", 1)
	h.start(whole, func(out fleet.Output, killed bool) {
		if killed { // in a fleet, the snapshot goes on
			h.settled()
		}
		tree.busy--
		h.expected(out, killed, 0, 11)
		h.look()
		if out.Status == 0 && made.id == "" && !made.mayGo {
			h.fatalf("the snapshot %s is not listed: %s", tag, out)
		}
	}, append([]string{"backup", "--json", "--allow-shrink", "--tag", tag}, h.of(n)...)...)
}

// look compares the list of snapshots with what is expected.
func (h *history) look() {
	h.t.Helper()
	listed := map[string]bool{}
	for _, s := range h.client.Snapshots(h.lists...) {
		if s.State != "committed" || len(s.Tags) != 1 || h.made[s.Tags[0]] == nil {
			continue
		}
		made := h.made[s.Tags[0]]
		made.id = s.ID
		listed[s.ID] = true
		if made.forgotten {
			h.fatalf("snapshot %s was forgotten, and is listed", s.ID)
		}
	}
	if h.rules > 0 {
		h.anyMayGo()
	}
	for tag, made := range h.made {
		switch {
		case made.id == "" || made.forgotten || listed[made.id]:
		case made.mayGo && made.hold == "":
			made.forgotten = true
		default:
			h.fatalf("snapshot %s (%s) is lost", made.id, tag)
		}
	}
}

// known returns the tags of the snapshots that are committed and not forgotten.
func (h *history) known() (tags []string) {
	for tag, made := range h.made {
		if made.id != "" && !made.forgotten {
			tags = append(tags, tag)
		}
	}
	slices.Sort(tags)
	return tags
}

// forgetSome forgets one snapshot, or applies rules. The newest may be marked as bad before.
func (h *history) forgetSome() {
	h.t.Helper()
	tags := h.known()
	if len(tags) == 0 {
		return
	}
	if h.random.IntN(3) == 0 {
		h.forgetByRules()
		return
	}
	made := h.made[tags[h.random.IntN(len(tags))]]
	if h.random.IntN(3) == 0 && !made.bad {
		out := h.wait(h.client.Start("snapshot", "mark-bad", made.id, "--reason", "test"))
		h.expected(out, false, 0)
		made.bad = out.Status == 0
	}
	h.tally.add("forgets", 1)
	made.mayGo = true
	h.start(false, func(out fleet.Output, killed bool) {
		h.expected(out, killed, 0, 1)
		if h.stopped(out) {
			return
		}
		if !killed && out.Status == 0 {
			made.forgotten = true
		}
		h.look()
	}, "forget", made.id)
}

// anyMayGo notes that each snapshot without a hold may be forgotten. A forget by rules that was
// paused may find snapshots that did not exist when it began.
func (h *history) anyMayGo() {
	for _, tag := range h.known() {
		h.made[tag].mayGo = h.made[tag].mayGo || h.made[tag].hold == ""
	}
}

func (h *history) forgetByRules() {
	h.t.Helper()
	h.look()
	h.rules++
	h.anyMayGo()
	rule := [][]string{{"--keep-last", "1"}, {"--keep-last", "2"}, {"--keep-within", "1d"}, {"--keep-within", "29d"}, {"--keep-daily", "1"}}[h.random.IntN(5)]
	h.tally.add("forgets", 1)
	h.start(false, func(out fleet.Output, killed bool) {
		h.expected(out, killed, 0, 1)
		h.stopped(out)
		h.look()
		h.rules--
	}, append(append([]string{"forget"}, h.lists...), rule...)...)
}

var toConfirm = regexp.MustCompile(`bctl confirm (\d+)`)

// stopped reports whether the brake has stopped a command. The stop is confirmed, or not.
func (h *history) stopped(out fleet.Output) bool {
	h.t.Helper()
	found := toConfirm.FindStringSubmatch(out.Stderr)
	if found == nil {
		return false
	}
	h.tally.add("stops of the brake", 1)
	if h.random.IntN(2) == 0 {
		h.confirm(found[1])
	}
	return true
}

func (h *history) confirm(stop string) {
	h.t.Helper()
	out := h.wait(h.client.Start("confirm", stop))
	h.expected(out, false, 0, 1) // the run may have ended, or would delete more by now
}

// pruneArgs are random arguments of a prune.
func (h *history) pruneArgs() (args []string) {
	args = []string{"--max-unused", []string{"0%", "10%", "100%"}[h.random.IntN(3)]}
	if h.random.IntN(3) == 0 {
		args = append(args, "--sweep")
	}
	return args
}

// prune prunes. The last prune is whole, and what the brake stops is confirmed.
func (h *history) prune(last bool, args ...string) {
	h.t.Helper()
	switch {
	case last && h.pruned != nil:
		h.pruned()
		return
	case h.byRoles:
		h.fault()
		return
	}
	for tries := 0; ; tries++ {
		again := false
		h.tally.add("prunes", 1)
		h.start(last, func(out fleet.Output, killed bool) {
			h.expected(out, killed, 0, 1, 11)
			again = last && out.Status != 0
			if !killed && out.Status == 1 && !h.stopped(out) {
				h.fatalf("%s", out)
			}
		}, append([]string{"prune", "--json"}, args...)...)
		if !again {
			return
		}
		if tries == 50 {
			h.fatalf("no prune ends")
		}
	}
}

// restoreOne restores a random snapshot. It must be complete, unless it was forgotten meanwhile.
func (h *history) restoreOne() {
	h.t.Helper()
	if tags := h.known(); len(tags) > 0 {
		h.restore(h.made[tags[h.random.IntN(len(tags))]], false)
	}
}

func (h *history) restore(made *madeSnapshot, whole bool) {
	h.t.Helper()
	target := filepath.Join(h.dir, fmt.Sprint("restored-", h.tally.counts["restores"]))
	h.tally.add("restores", 1)
	h.start(whole, func(out fleet.Output, killed bool) {
		switch {
		case killed:
		case out.Status == 0:
			if got := h.describe(target); !maps.Equal(got, made.content) {
				h.fatalf("snapshot %s restores as %v, want %v", made.id, got, made.content)
			}
			h.tally.add("restores compared", 1)
		case !made.mayGo:
			h.fatalf("%s", out)
		case whole:
			h.look()
			if !made.forgotten {
				h.fatalf("%s", out)
			}
		}
		h.must(os.RemoveAll(target))
	}, "restore", made.id, "--target", target)
}

// checkAll restores every snapshot that is not forgotten.
func (h *history) checkAll() {
	h.t.Helper()
	h.look()
	for _, tag := range h.known() {
		h.restore(h.made[tag], true)
	}
}

// hold adds or removes a hold.
func (h *history) hold() {
	h.t.Helper()
	tags := h.known()
	if len(tags) == 0 {
		return
	}
	made := h.made[tags[h.random.IntN(len(tags))]]
	if made.hold != "" {
		out := h.wait(h.client.Start("hold", "rm", made.hold))
		h.expected(out, false, 0)
		if out.Status == 0 {
			made.hold = ""
		}
		return
	}
	out := h.wait(h.client.Start("hold", "add", made.id, "--reason", "test", "--json"))
	if out.Status != 0 && made.mayGo {
		return // it was forgotten meanwhile
	}
	h.expected(out, false, 0)
	if out.Status != 0 {
		return
	}
	found := regexp.MustCompile(`"id":(\d+)`).FindStringSubmatch(out.Stdout)
	made.hold = cmp.Or(append(found, "", "")[1], "?")
}
