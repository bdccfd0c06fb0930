package indextest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

func testSchema(t *testing.T, fresh func(testing.TB) Database) {
	db := fresh(t)
	f := &fixture{TB: t, ctx: t.Context(), x: db.Open()}
	f.wants(f.x.CheckSchema(f.ctx), index.ErrSchema)

	// Several processes migrate at the same time.
	var group errgroup.Group
	for range 4 {
		x := db.Open()
		group.Go(func() error {
			if _, to, err := x.Migrate(f.ctx); err != nil || to == 0 {
				return fmt.Errorf("migrated to %d: %w", to, err)
			}
			return x.CheckSchema(f.ctx)
		})
	}
	f.must(group.Wait())
	f.must(f.x.CheckSchema(f.ctx))
	if from, to, err := f.x.Migrate(f.ctx); err != nil || from != to {
		t.Fatalf("migrated from %d to %d, %v; want nothing to do", from, to, err)
	}
}

func testRepository(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	_, err := f.x.Repository(f.ctx)
	f.wants(err, backup.ErrNoRepository)
	f.wants(f.x.SetRecipients(f.ctx, []string{"age1…"}), backup.ErrNoRepository)
	f.wants(f.x.SetKeyObjects(f.ctx, []string{"keys/a"}), backup.ErrNoRepository)
	want := backup.Repository{
		ID: backup.NewRepositoryID(), Version: 1, Created: time.Date(2026, 1, 2, 3, 4, 5, 678_901_000, time.UTC),
		Chunker: "fastcdc-v1.0.0-1MiB", Codec: "zstd-3", Recipients: []string{"age1…", "age2"}, Signer: [32]byte{1, 31: 2},
	}
	f.must(f.x.CreateRepository(f.ctx, want))
	got, err := f.db.Open().Repository(f.ctx)
	f.must(err)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("repository %+v, want %+v", got, want)
	}
	f.wants(f.x.CreateRepository(f.ctx, want), backup.ErrExists)

	want.Recipients = []string{"age2", "age3", "age1…"}
	f.must(f.x.SetRecipients(f.ctx, want.Recipients))
	got, err = f.db.Open().Repository(f.ctx)
	f.must(err)
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("repository %+v, want %+v", got, want)
	}
	f.wants(f.x.SetRecipients(f.ctx, []string{"a\x00b"}), backup.ErrInvalid)

	for _, names := range [][]string{nil, {"keys/a", "keys/b"}, {"keys/c"}} {
		f.must(f.x.SetKeyObjects(f.ctx, names))
		if got, err := f.db.Open().KeyObjects(f.ctx); err != nil || !slices.Equal(got, names) {
			t.Errorf("key objects %q, %v; want %q", got, err, names)
		}
	}
	f.wants(f.x.SetKeyObjects(f.ctx, []string{"a\x00b"}), backup.ErrInvalid)
}

func testFilersAndShards(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	// The first caller creates it.
	var group errgroup.Group
	ids := make([]backup.ShardID, 8)
	for i := range ids {
		group.Go(func() error {
			filer, err := f.x.EnsureFiler(f.ctx, "new")
			if err != nil {
				return err
			}
			shard, err := f.x.EnsureShard(f.ctx, filer.ID, "/srv/ünï", "posix:///srv")
			ids[i] = shard.ID
			return err
		})
	}
	f.must(group.Wait())
	if slices.ContainsFunc(ids, func(id backup.ShardID) bool { return id == 0 || id != ids[0] }) {
		t.Fatalf("shards %v, want one", ids)
	}
	moved, err := f.x.EnsureShard(f.ctx, f.shard.Filer, f.shard.Name, "posix:///elsewhere")
	f.must(err)
	again, err := f.x.EnsureShard(f.ctx, f.shard.Filer, f.shard.Name, "posix:///elsewhere")
	f.must(err)
	if want := (backup.Shard{ID: f.shard.ID, Key: f.shard.Key, Filer: f.shard.Filer, Name: f.shard.Name, Source: "posix:///elsewhere"}); !reflect.DeepEqual(moved, want) || !reflect.DeepEqual(again, want) {
		t.Fatalf("shard %+v, then %+v; want %+v", moved, again, want)
	}
	_, err = f.x.EnsureShard(f.ctx, 4711, "home", "posix:///home")
	f.wants(err, backup.ErrNotFound)
	for _, name := range []string{"", "nul\x00", "latin\xff"} {
		_, err := f.x.EnsureFiler(f.ctx, name)
		f.wants(err, backup.ErrInvalid)
		_, err = f.x.EnsureShard(f.ctx, f.shard.Filer, name, "posix:///")
		f.wants(err, backup.ErrInvalid)
	}
}

func testBeginSnapshot(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	wanted := backup.Snapshot{
		ID: backup.NewSnapshotID(), AllowShrink: true, Tags: []string{"weekly", "ünï"},
		Selection: backup.Selection{Exclude: []string{"*.o", "/tmp"}, OneFileSystem: true, ExcludeLargerBytes: 1 << 40},
	}
	s, err := f.x.BeginSnapshot(f.ctx, f.shard.ID, wanted, f.now)
	f.must(err)
	want := backup.Snapshot{
		ID: wanted.ID, Shard: f.shard, Number: 1, State: backup.Running,
		Filer:   backup.Filer{ID: f.shard.Filer, Name: "filer", Site: backup.DefaultSite, Limits: backup.Limits{WalkTasks: 10_000, ReadBatches: 10_000}},
		Started: f.now, Source: f.shard.Source, Selection: wanted.Selection, AllowShrink: true, Tags: wanted.Tags, TasksAnnounced: 1,
	}
	if !reflect.DeepEqual(s, want) || !reflect.DeepEqual(f.snapshot(s.ID), want) {
		t.Fatalf("snapshot %+v\nread again %+v\nwant %+v", s, f.snapshot(s.ID), want)
	}
	task := f.claimTask(s)
	wantTask := backup.WalkTask{
		Job: backup.Job{
			Snapshot: s.ID, Filer: f.shard.Filer, Shard: f.shard.ID, FilerName: "filer", ShardName: f.shard.Name,
			Number: 1, Started: backup.TimeOf(f.now), Source: f.shard.Source,
			AllowShrink: true, Selection: wanted.Selection, Compare: backup.CompareAll, Site: backup.DefaultSite,
		},
		ID: task.ID, Attempt: 1, Directories: []string{""}, Scarce: true,
	}
	if !reflect.DeepEqual(task, wantTask) {
		t.Fatalf("root task %+v, want %+v", task, wantTask)
	}

	running, err := f.x.BeginSnapshot(f.ctx, f.shard.ID, backup.Snapshot{}, f.now)
	f.wants(err, backup.ErrRunning)
	if running.ID != s.ID {
		t.Fatalf("snapshot %s runs, want %s", running.ID, s.ID)
	}
	// Another shard is not affected.
	_, err = f.x.BeginSnapshot(f.ctx, f.newShard("filer", "other").ID, backup.Snapshot{}, f.now)
	f.must(err)

	// A number is used once, and only a committed snapshot is a base.
	f.fail(s.ID, "no reason")
	second := f.begin()
	f.accept(index.Result{Slice: SliceOf(f.claimTask(second))})
	f.commit(second)
	f.fail(f.begin().ID, "")
	if last := f.begin(); last.Number != 4 || last.Base != 2 || second.Number != 2 || second.Base != 0 {
		t.Fatalf("snapshots %d on %d and %d on %d, want 2 on 0 and 4 on 2", second.Number, second.Base, last.Number, last.Base)
	}

	_, err = f.x.BeginSnapshot(f.ctx, 4711, backup.Snapshot{}, f.now)
	f.wants(err, backup.ErrNotFound)
	_, err = f.x.BeginSnapshot(f.ctx, f.newShard("filer", "third").ID, backup.Snapshot{ID: s.ID}, f.now)
	f.wants(err, backup.ErrExists)
	_, err = f.x.BeginSnapshot(f.ctx, f.shard.ID, backup.Snapshot{Selection: backup.Selection{Exclude: []string{"\xff"}}}, f.now)
	f.wants(err, backup.ErrInvalid)
}

// Of many processes that begin a snapshot at the same time, one succeeds (I5); the others receive
// that snapshot.
func testOneRunningSnapshot(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	other := f.db.Open()
	ids := make([]backup.SnapshotID, 8)
	begun := make([]bool, len(ids))
	var group errgroup.Group
	for i := range ids {
		x := f.x
		if i%2 == 0 {
			x = other
		}
		group.Go(func() error {
			s, err := x.BeginSnapshot(f.ctx, f.shard.ID, backup.Snapshot{ID: backup.NewSnapshotID()}, f.now)
			ids[i], begun[i] = s.ID, err == nil
			if errors.Is(err, backup.ErrRunning) {
				return nil
			}
			return err
		})
	}
	f.must(group.Wait())
	count := 0
	for i := range ids {
		if begun[i] {
			count++
		}
		if ids[i] != ids[0] {
			t.Fatalf("snapshots %v, want one", ids)
		}
	}
	if count != 1 {
		t.Fatalf("%d snapshots begun, want 1", count)
	}
}

func testSnapshots(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	if _, err := f.x.Snapshot(f.ctx, backup.NewSnapshotID()); !errors.Is(err, backup.ErrNotFound) {
		t.Fatalf("error %v, want not found", err)
	}
	home := f.shard
	start := f.now
	var all []backup.Snapshot
	for i, shard := range []backup.Shard{home, f.newShard("filer", "var"), home, f.newShard("elsewhere", "home"), home} {
		f.shard, f.now = shard, start.Add(time.Duration(i)*time.Hour)
		switch i {
		case 2:
			s := f.begin()
			f.fail(s.ID, "bad\xffluck\x00")
			all = append(all, f.snapshot(s.ID))
		case 4:
			all = append(all, f.begin())
		default:
			all = append(all, f.snapshot(f.commitPages().ID))
		}
	}
	if all[2].Reason != "bad\uFFFDluck\uFFFD" || !all[0].Committed.Equal(start.Add(time.Hour)) {
		t.Fatalf("reason %q, committed %s", all[2].Reason, all[0].Committed)
	}
	prefix := all[3].ID.String()[:9]
	for _, test := range []struct {
		name   string
		filter index.SnapshotFilter
		want   []int
	}{
		{"all", index.SnapshotFilter{}, []int{0, 1, 2, 3, 4}},
		{"filer", index.SnapshotFilter{Filer: "filer"}, []int{0, 1, 2, 4}},
		{"shard", index.SnapshotFilter{Shard: "home"}, []int{0, 2, 3, 4}},
		{"both", index.SnapshotFilter{Filer: "elsewhere", Shard: "home"}, []int{3}},
		{"states", index.SnapshotFilter{States: []backup.State{backup.Running, backup.Failed}}, []int{2, 4}},
		{"since", index.SnapshotFilter{Since: start.Add(3 * time.Hour)}, []int{3, 4}},
		{"since, finer than what is stored", index.SnapshotFilter{Since: start.Add(3*time.Hour + 1)}, []int{4}},
		{"limit", index.SnapshotFilter{Limit: 2, Filer: "filer"}, []int{2, 4}},
		{"prefix", index.SnapshotFilter{IDPrefix: prefix}, []int{3}},
		{"prefix in capitals", index.SnapshotFilter{IDPrefix: strings.ToUpper(prefix)}, []int{3}},
		{"whole id", index.SnapshotFilter{IDPrefix: all[1].ID.String()}, []int{1}},
		{"nothing", index.SnapshotFilter{Filer: "nobody"}, nil},
	} {
		got, err := f.x.Snapshots(f.ctx, test.filter)
		f.must(err)
		var want []backup.Snapshot
		for _, i := range test.want {
			want = append(want, all[i])
		}
		if len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d snapshots %+v, want %+v", test.name, len(got), got, want)
		}
	}
	for _, bad := range []string{"xyz", strings.Repeat("0", 33)} {
		_, err := f.x.Snapshots(f.ctx, index.SnapshotFilter{IDPrefix: bad})
		f.wants(err, backup.ErrInvalid)
	}
}
