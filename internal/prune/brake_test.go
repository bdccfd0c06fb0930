package prune_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/prune"
)

// A pass that would delete much deletes nothing until it is confirmed. The bytes that it would free
// of packs that are needed in part count, too. The deletions of a pass count for the next passes,
// unless somebody has confirmed them.
func TestBrake(t *testing.T) {
	m := newWorld(t, openSQLite(t), 1)
	m.exact = true
	brake := func(percent int) {
		t.Helper()
		if err := m.x.SetBrake(m.ctx, index.Brake{Snapshots: 100, MinSnapshots: 1, Bytes: percent, MinBytes: 1, Operators: 1}, "me"); err != nil {
			t.Fatal(err)
		}
	}
	run := func(unused float64) (prune.Summary, error) {
		return prune.Run(m.ctx, prune.Options{Index: m.x, Store: m.s, Holder: "pass", MaxUnused: unused, Log: slog.New(slog.DiscardHandler)})
	}
	s := m.shards[0]
	first := m.backup(s, wants{"a": {1, 2, 3}, "b": {4}})
	m.backup(s, wants{"a": {1}, "b": {5}})
	m.forget(s, first)
	would, err := prune.Run(m.ctx, prune.Options{Index: m.x, DryRun: true})
	if err != nil || would.Bytes == 0 || would.Freed == 0 || would.Stored != would.KeptBytes+would.Bytes+would.Freed {
		t.Fatalf("%+v, %v", would, err)
	}
	// Without what it would free, it would be less than the share.
	brake(int(100 * (would.Bytes + would.Freed/2) / would.Stored))
	var stopped *index.StoppedError
	for n := range 2 {
		result, err := run(0)
		if !errors.As(err, &stopped) || stopped.New != (n == 0) || result.Packs+result.Thinned+result.Snapshots != 0 || result.Versions != 0 {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	if stopped.Bytes != would.Bytes+would.Freed || stopped.OfBytes != would.Stored || stopped.By != prune.Role {
		t.Fatalf("%+v, want %+v", stopped, would)
	}
	m.check()
	if _, err := m.x.Confirm(m.ctx, stopped.ID, "me", ""); err != nil {
		t.Fatal(err)
	}
	result, err := run(0)
	if err != nil || result.Bytes != would.Bytes || result.Thinned != would.Thinned {
		t.Fatalf("%+v, %v; want %+v", result, err, would)
	}
	m.check()

	// Two passes that each delete less than the share.
	brake(28)
	var failures int
	for _, c := range [][2]int{{6, 7}, {8, 9}} {
		old := m.backup(s, wants{"a": {1}, "b": {c[0]}})
		m.backup(s, wants{"a": {1}, "b": {c[1]}})
		m.forget(s, old)
		if _, err := run(1); errors.As(err, &stopped) {
			failures++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if failures != 1 || stopped.EarlierBytes == 0 {
		t.Fatalf("%d of 2 passes stopped, the last %+v; want the second", failures, stopped)
	}
}
