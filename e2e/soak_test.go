package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// soakFor is how long trees change and faults strike, unless E2E_SOAK_MINUTES says more.
const soakFor = 20 * time.Second

// A fleet with several filers, whose trees change at random and are backed up, while faults of all
// kinds strike at random. Each snapshot is restored and compared. A policy forgets the snapshots of
// one filer, except those on hold. Those of the other one are forgotten at random, also the newest,
// and by rules that the brake stops until they are confirmed. Two pruners delete what no other
// snapshot needs; at the end, the remaining ones are compared again. Every decision follows from
// the seed; how far the fleet is when a fault strikes does not.
func TestSoak(t *testing.T) {
	testtarget.Need(t, testtarget.Long)
	t.Parallel()
	seed, last := rand.Uint64(), soakFor
	if text := os.Getenv("E2E_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatal(err)
		}
	}
	if text := os.Getenv("E2E_SOAK_MINUTES"); text != "" {
		minutes, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatalf("E2E_SOAK_MINUTES: %v", err)
		}
		last = time.Duration(minutes * float64(time.Minute))
	}
	t.Logf("E2E_SEED=%d makes the same changes and faults", seed)
	s := newSoak(t, seed)
	s.run(last)
	s.awaitPolicy()
	before := s.compareKept()
	s.f.Index.CheckSettled()
	for _, tree := range s.trees {
		for len(tree.kept) > 1 {
			s.forget(tree)
		}
	}
	fleet.Await(t, "a turn between the pruners", func() bool { return s.f.Run("prune").Status == 0 })
	after := s.compareKept()
	t.Logf("%d snapshots were forgotten by the policy; %d were on hold; %d were the newest; %d stops were confirmed", s.byPolicy, s.holds, s.newest, s.stops)
	t.Logf("%d snapshots of %d trees, of which %d were forgotten; %d faults; %d B of packs, %d B after pruning", s.committed, len(s.trees), s.forgot, s.struck, before, after)
	if s.committed == 0 || s.struck == 0 || !s.retains {
		t.Error("nothing was tried")
	}
}

// A soak is all that a run knows.
type soak struct {
	t      *testing.T
	f      *fleet.Fleet
	trees  []*soakTree
	faults []fault
	random *rand.Rand // of faults

	mend      func() // of the fault that holds; nil: none does
	change    *time.Timer
	committed int
	forgot    int
	struck    int

	retains                        bool // there is a policy
	byPolicy, holds, newest, stops int
}

// A soakTree is a shard, and what is going on with it.
type soakTree struct {
	filer   string
	mutator *mutator
	backup  *fleet.Running // nil: none runs
	id      string         // of its snapshot
	policy  bool           // a policy forgets its snapshots
	kept    []keptSnapshot // oldest first
}

// A keptSnapshot is a snapshot that is not forgotten.
type keptSnapshot struct {
	id, tree string // tree is a copy of the tree as it was then
	hold     string // id of its hold; "": none
}

func newSoak(t *testing.T, seed uint64) *soak {
	s := &soak{
		t: t, random: rand.New(rand.NewPCG(seed, 100)),
		f: fleet.New(t, fleet.Options{Links: true, Proxy: true, OwnPostgres: true, Pruners: 2}),
	}
	for i := range 4 {
		filer := fmt.Sprintf("filer-%d", i%2)
		if i < 2 {
			s.f.Filer(filer)
		}
		dir := filepath.Join(t.TempDir(), fmt.Sprintf("tree-%d", i))
		generate(t, dir, seed+uint64(i), shape{directories: 80, files: 5, meanBytes: 4000})
		s.f.Shard(filer, dir)
		s.trees = append(s.trees, &soakTree{filer: filer, mutator: &mutator{t: t, dir: dir, random: rand.New(rand.NewPCG(seed, uint64(i)))}})
	}
	s.faults = s.allFaults()
	return s
}

// run lets trees and faults take their turns, in one goroutine: what a command
// of the test's own needs is whole while it runs.
func (s *soak) run(last time.Duration) {
	end := time.NewTimer(last)
	defer end.Stop()
	s.change = time.NewTimer(0)
	defer s.change.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ended := false; ; {
		select {
		case <-end.C:
			ended = true
			s.heal()
		case <-s.change.C:
			switch {
			case s.mend != nil:
				s.heal()
				s.change.Reset(s.between(200, 1500))
			case !ended:
				s.strike()
			}
		case <-tick.C:
		}
		running := false
		for _, tree := range s.trees {
			s.step(tree, ended)
			running = running || tree.backup != nil
		}
		if ended && !running {
			return
		}
	}
}

func (s *soak) between(least, most int) time.Duration {
	return time.Duration(least+s.random.IntN(most-least)) * time.Millisecond
}

// strike begins up to three random faults of different things, and says when they end.
func (s *soak) strike() {
	var mends []func()
	hit := map[string]bool{}
	for range 1 + s.random.IntN(3) {
		fault := s.faults[s.random.IntN(len(s.faults))]
		if hit[fault.target] {
			continue
		}
		hit[fault.target] = true
		s.t.Logf("fault %d: %s %s", s.struck, fault.target, fault.name)
		s.struck++
		mends = append(mends, fault.strike())
	}
	holds := s.between(100, 2000)
	if s.random.IntN(4) == 0 {
		holds += s.between(0, 2*fleet.LeaseSeconds*1000)
	}
	s.mend = func() {
		for _, mend := range mends {
			mend()
		}
	}
	s.change.Reset(holds)
}

func (s *soak) heal() {
	if s.mend != nil {
		s.mend()
		s.mend = nil
	}
}

// step looks after one tree: a backup that has ended is judged as soon as no
// fault holds, and then the tree changes and the next begins.
func (s *soak) step(tree *soakTree, ended bool) {
	if s.mend != nil {
		return
	}
	dir := tree.mutator.dir
	if tree.backup != nil {
		if !tree.backup.Ended() {
			if !tree.policy && len(tree.kept) > 2 && tree.mutator.random.IntN(40) == 0 {
				s.forget(tree)
			}
			return
		}
		s.judge(tree)
		tree.backup = nil
		s.retain(tree)
	}
	if ended {
		return
	}
	if len(tree.kept) > 0 {
		tree.mutator.mutate(5 + tree.mutator.random.IntN(40))
		settle(s.t)
	}
	tree.backup, tree.id = s.f.StartBackupOf("--filer", tree.filer, "--shard", dir, "--allow-shrink")
}

// judge compares a snapshot with its tree, which has not changed since.
func (s *soak) judge(tree *soakTree) {
	s.t.Helper()
	// A command that asks the index in the very moment in which that dies says so and ends; its
	// snapshot goes on.
	if out := tree.backup.Wait(); out.Status != 0 && !strings.Contains(out.Stderr, "unavailable") {
		s.t.Fatalf("%s", out)
	}
	fleet.Await(s.t, "the snapshot to end", func() bool { return s.f.Index.Snapshots()[tree.id] })
	made, problems := s.f.Show(tree.id)
	dir := tree.mutator.dir
	all, directories := treetest.Count(s.t, dir)
	if made.State != "committed" || made.Files != all-directories || made.Directories != directories || made.StatCalls != all || made.Errors != 0 {
		s.t.Errorf("a tree of %d entries, %d of them directories: %+v, %v", all, directories, made, problems)
	}
	restored := s.f.Restore(made.ID)
	treetest.Equal(s.t, dir, restored)
	s.committed++
	tree.kept = append(tree.kept, keptSnapshot{id: made.ID, tree: copyTree(s.t, dir)})
	removeTree(s.t, restored)
}

// forget forgets a random snapshot of a tree, but never the newest.
func (s *soak) forget(tree *soakTree) {
	s.t.Helper()
	i := tree.mutator.random.IntN(len(tree.kept) - 1)
	s.f.Must("forget", tree.kept[i].id)
	s.drop(tree, i)
}

// compareKept restores each snapshot that is not forgotten, and returns the bytes of all packs.
func (s *soak) compareKept() (packs int64) {
	s.t.Helper()
	for _, tree := range s.trees {
		for _, kept := range tree.kept {
			restored := s.f.Restore(kept.id)
			treetest.Equal(s.t, kept.tree, restored)
			removeTree(s.t, restored)
		}
	}
	return fleet.StoredBytes(s.t, s.f.StoreDir(), "packs/")
}

func removeTree(t *testing.T, tree string) {
	t.Helper()
	if err := os.RemoveAll(tree); err != nil {
		t.Fatal(err)
	}
}

// A fault is something that happens to one part of the fleet, until it is mended.
type fault struct {
	target, name string
	strike       func() (mend func())
}

// allFaults is a list of which each is as likely.
func (s *soak) allFaults() []fault {
	f := s.f
	list := []fault{
		{"nats-server", "dies", func() func() { f.NATS.Kill(); return f.NATS.Restart }},
		{"nats-server", "hangs", func() func() { f.NATS.Pause(); return f.NATS.Resume }},
		{"nats-server", "loses all streams", func() func() {
			js := connect(s.t, f)
			defer js.Conn().Close()
			for stream := range queues {
				_ = js.DeleteStream(s.t.Context(), stream) // it may be gone already
			}
			return func() {}
		}},
		{"postgres", "dies, and comes back", func() func() { f.Postgres.Restart(); return func() {} }},
		{"postgres", "ends all connections", func() func() { f.Index.EndConnections(); return func() {} }},
		{"versitygw", "dies", func() func() { f.S3.Kill(); return f.S3.Restart }},
		{"store", "fails most writes", func() func() { f.Proxy.Fail.Store(true); return f.Proxy.Heal }},
		{"store", "refuses", func() func() { f.Proxy.Refuse.Store(true); return f.Proxy.Heal }},
		{"store", "is full", func() func() { f.Proxy.Full.Store(true); return f.Proxy.Heal }},
		{"store", "is slow", func() func() { f.Proxy.Slow(200 * time.Millisecond); return f.Proxy.Heal }},
	}
	for _, services := range [][]*fleet.Service{f.Walkers, f.Readers, f.Committers, f.Pruners} {
		for _, victim := range services {
			list = append(list, faultsOf(victim)...)
		}
	}
	return list
}

func faultsOf(victim *fleet.Service) []fault {
	target := victim.Name
	list := []fault{
		{target, "dies", func() func() { victim.Kill(); return victim.Restart }},
		{target, "is told to stop", func() func() { victim.Retire(); return victim.Restart }},
		{target, "hangs", func() func() { victim.Pause(); return victim.Resume }},
		{target, "is cut off from NATS", func() func() { victim.NATS.Cut(); return victim.Heal }},
		{target, "is cut off from Postgres", func() func() { victim.Postgres.Cut(); return victim.Heal }},
		{target, "has a slow network", func() func() {
			for _, links := range []fleet.Links{victim.NATS, victim.Postgres, victim.S3} {
				links.Slow(20 * time.Millisecond)
			}
			return victim.Heal
		}},
	}
	if victim.UsesStore() {
		list = append(list, fault{target, "is cut off from S3", func() func() { victim.S3.Cut(); return victim.Heal }})
	}
	return list
}
