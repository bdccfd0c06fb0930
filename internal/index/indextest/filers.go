package indextest

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func (f *fixture) listFilers(filter index.FilerFilter) []index.FilerStatus {
	f.Helper()
	list, err := f.x.ListFilers(f.ctx, filter)
	f.must(err)
	return list
}

func (f *fixture) listShards(filter index.ShardFilter) []index.ShardStatus {
	f.Helper()
	list, err := f.x.ListShards(f.ctx, filter)
	f.must(err)
	return list
}

// addFiler adds a filer with a shard, which becomes the fixture's shard.
func (f *fixture) addFiler(filer backup.Filer) backup.Filer {
	f.Helper()
	added, err := f.x.AddFiler(f.ctx, filer)
	f.must(err)
	f.shard, err = f.x.AddShard(f.ctx, backup.Shard{Filer: added.ID, Name: "home", Source: "posix:///srv/home"})
	f.must(err)
	return added
}

func testFilers(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	want := backup.Filer{
		Name: "nas-1", Site: "berlin-2", Limits: backup.Limits{WalkTasks: 3, ReadBatches: 4, ReadBytesPerSecond: 5 << 20, Floor: 25},
		Compare: backup.CompareMtime, Selection: backup.Selection{Exclude: []string{"*.tmp"}, OneFileSystem: true},
		Labels: map[string]string{"tier": "gold", "ünï": ""},
	}
	got, err := f.x.AddFiler(f.ctx, want)
	f.must(err)
	want.ID = got.ID
	if got.ID == 0 || !reflect.DeepEqual(got, want) {
		t.Fatalf("added %+v, want %+v", got, want)
	}
	_, err = f.x.AddFiler(f.ctx, want)
	f.wants(err, backup.ErrExists)
	plain, err := f.x.AddFiler(f.ctx, backup.Filer{Name: "a plain one"})
	f.must(err)
	if plain.Site != backup.DefaultSite {
		t.Fatalf("site %q, want the default", plain.Site)
	}

	want.Limits, want.Labels = backup.Limits{ReadBytesPerSecond: 1}, map[string]string{"tier": "silver"}
	changed := want
	changed.Name, changed.Retired = "ignored", true
	f.must(f.x.SetFiler(f.ctx, changed))
	if list := f.listFilers(index.FilerFilter{Labels: map[string]string{"tier": "silver"}}); len(list) != 1 || !reflect.DeepEqual(list[0].Filer, want) {
		t.Fatalf("%+v, want %+v alone", list, want)
	}
	changed.ID = 4711
	f.wants(f.x.SetFiler(f.ctx, changed), backup.ErrNotFound)
	if list := f.listFilers(index.FilerFilter{}); len(list) != 3 || list[0].Name != plain.Name || list[1].Name != "filer" || list[2].Name != "nas-1" {
		t.Fatalf("%+v, want three by name", list)
	}
	if list := f.listFilers(index.FilerFilter{Name: "nas-1", Labels: map[string]string{"tier": "gold"}}); len(list) != 0 {
		t.Fatalf("%+v, want none with an old label", list)
	}
	sites, err := f.x.Sites(f.ctx)
	f.must(err)
	if !reflect.DeepEqual(sites, []string{"berlin-2", backup.DefaultSite}) {
		t.Fatalf("sites %q", sites)
	}
	for _, break1 := range []func(*backup.Filer){
		func(x *backup.Filer) { x.Name = "" },
		func(x *backup.Filer) { x.Name = "nul\x00" },
		func(x *backup.Filer) { x.Name = strings.Repeat("n", 256) },
		func(x *backup.Filer) { x.Site = "Berlin.2" },
		func(x *backup.Filer) { x.Limits.WalkTasks = -1 },
		func(x *backup.Filer) { x.Limits.ReadBatches = 1 << 30 },
		func(x *backup.Filer) { x.Limits.ReadBytesPerSecond = -1 },
		func(x *backup.Filer) { x.Limits.Floor = -1 },
		func(x *backup.Filer) { x.Limits.Floor = 101 },
		func(x *backup.Filer) { x.Compare = 8 },
		func(x *backup.Filer) { x.Compare = backup.CompareInode },
		func(x *backup.Filer) { x.Selection.Exclude = []string{"\xff"} },
		func(x *backup.Filer) { x.Selection.ExcludeLargerBytes = -1 },
		func(x *backup.Filer) { x.Labels = map[string]string{"": "x"} },
		func(x *backup.Filer) { x.Labels = map[string]string{"x": "\xff"} },
	} {
		bad := backup.Filer{Name: "bad"}
		break1(&bad)
		_, err := f.x.AddFiler(f.ctx, bad)
		f.wants(err, backup.ErrInvalid)
		if bad.ID = plain.ID; bad.Name == "bad" {
			f.wants(f.x.SetFiler(f.ctx, bad), backup.ErrInvalid)
		}
	}
}

func testShards(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	filer := f.addFiler(backup.Filer{Name: "nas", Labels: map[string]string{"tier": "gold"}})
	want := backup.Shard{Filer: filer.ID, Name: "/srv/b", Source: "posix:///srv/b", Snapshots: ".snapshot/hourly.*", Selection: backup.Selection{ExcludeIfPresent: []string{".nobackup"}}}
	got, err := f.x.AddShard(f.ctx, want)
	f.must(err)
	want.ID, want.Key = got.ID, got.Key
	if got.ID == 0 || !reflect.DeepEqual(got, want) {
		t.Fatalf("added %+v, want %+v", got, want)
	}
	_, err = f.x.AddShard(f.ctx, want)
	f.wants(err, backup.ErrExists)
	_, err = f.x.AddShard(f.ctx, backup.Shard{Filer: 4711, Name: "x", Source: "posix:///x"})
	f.wants(err, backup.ErrNotFound)
	want.Source, want.Snapshots, want.Selection = "posix:///srv/c", "", backup.Selection{}
	changed := want
	changed.Name, changed.Retired = "ignored", true
	f.must(f.x.SetShard(f.ctx, changed))
	list := f.listShards(index.ShardFilter{Filer: "nas", Name: "/srv/b"})
	if len(list) != 1 || !reflect.DeepEqual(list[0].Shard, want) || !reflect.DeepEqual(list[0].Filer, filer) {
		t.Fatalf("%+v, want %+v of %+v", list, want, filer)
	}
	changed.ID = 4711
	f.wants(f.x.SetShard(f.ctx, changed), backup.ErrNotFound)
	for _, break1 := range []func(*backup.Shard){
		func(x *backup.Shard) { x.Name = "" },
		func(x *backup.Shard) { x.Name = strings.Repeat("n", 2001) },
		func(x *backup.Shard) { x.Source = "" },
		func(x *backup.Shard) { x.Source = "\xff" },
		func(x *backup.Shard) { x.Snapshots = "/.snapshot/*" },
		func(x *backup.Shard) { x.Snapshots = "../*" },
		func(x *backup.Shard) { x.Selection.ExcludeIfPresent = []string{strings.Repeat("x", 1<<17)} },
	} {
		bad := backup.Shard{Filer: filer.ID, Name: "bad", Source: "posix:///bad"}
		break1(&bad)
		_, err := f.x.AddShard(f.ctx, bad)
		f.wants(err, backup.ErrInvalid)
		if bad.ID = got.ID; bad.Name == "bad" {
			f.wants(f.x.SetShard(f.ctx, bad), backup.ErrInvalid)
		}
	}
	var names []string
	for _, s := range f.listShards(index.ShardFilter{}) {
		names = append(names, s.Filer.Name+":"+s.Name)
	}
	if !reflect.DeepEqual(names, []string{"filer:home", "nas:/srv/b", "nas:home"}) {
		t.Fatalf("shards %q, want them by filer and name", names)
	}
	if gold := f.listShards(index.ShardFilter{Labels: map[string]string{"tier": "gold"}}); len(gold) != 2 {
		t.Fatalf("%+v, want the two of the gold filer", gold)
	}
}

func testRetire(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	filer := f.addFiler(backup.Filer{Name: "nas", Site: "far"})
	used := f.shard
	unused, err := f.x.AddShard(f.ctx, backup.Shard{Filer: filer.ID, Name: "unused", Source: "posix:///unused"})
	f.must(err)
	s := f.begin()
	f.wants(f.x.RetireFiler(f.ctx, filer.ID, "tester"), backup.ErrRunning)
	f.wants(f.x.RetireShard(f.ctx, used.ID, "tester"), backup.ErrRunning)
	f.accept(index.Result{Slice: SliceOf(f.claimTask(s))})
	f.commit(s)

	f.must(f.x.RetireFiler(f.ctx, filer.ID, "tester"))
	_, err = f.x.BeginSnapshot(f.ctx, used.ID, backup.Snapshot{}, f.now)
	f.wants(err, backup.ErrNotFound)
	_, err = f.x.BeginSnapshot(f.ctx, unused.ID, backup.Snapshot{}, f.now)
	f.wants(err, backup.ErrNotFound)
	_, err = f.x.AddShard(f.ctx, backup.Shard{Filer: filer.ID, Name: "new", Source: "posix:///new"})
	f.wants(err, backup.ErrNotFound)
	if filers, shards := f.listFilers(index.FilerFilter{Name: "nas"}), f.listShards(index.ShardFilter{Filer: "nas"}); len(filers)+len(shards) > 0 {
		t.Fatalf("%+v and %+v, want nothing that is retired", filers, shards)
	}
	shards := f.listShards(index.ShardFilter{Filer: "nas", Retired: true})
	if len(shards) != 1 || !shards[0].Retired || !shards[0].Filer.Retired || shards[0].LastGood != s.ID {
		t.Fatalf("%+v, want the shard that had a snapshot", shards)
	}
	if all := f.listFilers(index.FilerFilter{Name: "nas", Retired: true}); len(all) != 1 || !all[0].Retired {
		t.Fatalf("%+v, want the retired filer", all)
	}
	if kept, err := f.x.Snapshots(f.ctx, index.SnapshotFilter{Filer: "nas"}); err != nil || len(kept) != 1 {
		t.Fatalf("snapshots %+v, %v; want the one", kept, err)
	}
	sites, err := f.x.Sites(f.ctx)
	f.must(err)
	if !reflect.DeepEqual(sites, []string{backup.DefaultSite}) {
		t.Fatalf("sites %q, want that of retired filers gone", sites)
	}

	// The filer is back in service, with new settings. Its shards are added one by one.
	back, err := f.x.AddFiler(f.ctx, backup.Filer{Name: "nas"})
	f.must(err)
	if back.ID != filer.ID || back.Site != backup.DefaultSite || back.Retired {
		t.Fatalf("%+v, want filer %d with the new settings", back, filer.ID)
	}
	_, err = f.x.BeginSnapshot(f.ctx, used.ID, backup.Snapshot{}, f.now)
	f.wants(err, backup.ErrNotFound)
	again, err := f.x.AddShard(f.ctx, backup.Shard{Filer: filer.ID, Name: used.Name, Source: "posix:///moved"})
	f.must(err)
	if f.shard = again; again.ID != used.ID || f.begin().Number != 2 {
		t.Fatalf("%+v, want shard %d with its history", again, used.ID)
	}

	// A filer that never had a snapshot leaves nothing behind.
	f.addFiler(backup.Filer{Name: "mistake"})
	f.must(f.x.RetireShard(f.ctx, f.shard.ID, "tester"))
	f.wants(f.x.RetireShard(f.ctx, f.shard.ID, "tester"), backup.ErrNotFound)
	f.must(f.x.RetireFiler(f.ctx, f.shard.Filer, "tester"))
	f.wants(f.x.RetireFiler(f.ctx, f.shard.Filer, "tester"), backup.ErrNotFound)
	if all := f.listFilers(index.FilerFilter{Name: "mistake", Retired: true}); len(all) != 0 {
		t.Fatalf("%+v, want nothing", all)
	}
	f.wantLog("tester: retire filer nas: ")

	// In a repository on one machine, the next backup takes it back into service.
	f.shard = f.newShard("filer", "home")
	f.commitPages()
	f.must(f.x.RetireFiler(f.ctx, f.shard.Filer, "tester"))
	f.shard = f.newShard("filer", "home")
	f.begin()
}

// If a filer is retired and a snapshot of it begins at the same time, one of them is refused.
func testRetireWhileBeginning(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	for i := range 5 {
		filer := f.addFiler(backup.Filer{Name: fmt.Sprint("nas", i)})
		f.commitPages()
		var begun, retired error
		var group errgroup.Group
		group.Go(func() error {
			_, begun = f.db.Open().BeginSnapshot(f.ctx, f.shard.ID, backup.Snapshot{}, f.now)
			return nil
		})
		group.Go(func() error { retired = f.x.RetireFiler(f.ctx, filer.ID, "tester"); return nil })
		f.must(group.Wait())
		if begun == nil {
			f.wants(retired, backup.ErrRunning)
		} else {
			f.wants(begun, backup.ErrNotFound)
			f.must(retired)
		}
	}
}

func testLists(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	f.must(f.x.RetireFiler(f.ctx, f.shard.Filer, "tester"))
	filer := f.addFiler(backup.Filer{Name: "nas"})
	first := f.shard
	second, err := f.x.AddShard(f.ctx, backup.Shard{Filer: filer.ID, Name: "var", Source: "posix:///var"})
	f.must(err)
	status := func() index.FilerStatus { return f.listFilers(index.FilerFilter{})[0] }
	if got := status(); got.Shards != 2 || !got.Oldest.IsZero() || !got.Newest.IsZero() || got.Running != 0 {
		t.Fatalf("%+v, want two shards without a snapshot", got)
	}
	start := f.now
	good := f.walk(func(r *backup.SliceWalked) { r.Counts = backup.Counts{Files: 7, Bytes: 70} })
	f.commit(good)
	if got := status(); !got.Oldest.IsZero() || !got.Newest.Equal(start) {
		t.Fatalf("%+v, want that one shard has none", got)
	}
	f.shard, f.now = second, start.Add(time.Hour)
	f.commitPages()
	if got := status(); !got.Oldest.Equal(start) || !got.Newest.Equal(f.now) {
		t.Fatalf("%+v, want %s to %s", got, start, f.now)
	}

	// A failed snapshot is not good, and neither is a running one.
	f.shard = first
	f.fail(f.begin().ID, "")
	f.now = time.Now() // lists count the leases that run now
	s := f.walk(func(r *backup.SliceWalked) {
		r.Children = children([][]string{{"a"}, {"b"}, {"c"}})
		r.Batches = reads([][]backup.PageVersion{{pageOf("x", "")}})
	})
	c := f.claim(s)
	c.Limit = 2
	_, err = f.x.ClaimTasks(f.ctx, c)
	f.must(err)
	f.claimBatches(s)
	if got := status(); got.Running != 1 || got.Tasks != 2 || got.Batches != 1 || !got.Oldest.Equal(start) {
		t.Fatalf("%+v, want two tasks and a batch of one snapshot in hand", got)
	}
	got := f.listShards(index.ShardFilter{Name: "home"})
	want := index.ShardStatus{Shard: first, Filer: filer, LastGood: good.ID, Number: 1, Time: start, Files: 7, Bytes: 70, Running: s.ID,
		Plan: index.Plan{Shard: first.ID, Filer: filer.ID, Good: 1}}
	if len(got) != 1 || !reflect.DeepEqual(got[0], want) {
		t.Fatalf("shard %+v, want %+v", got, want)
	}
}
