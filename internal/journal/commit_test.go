package journal

import (
	"errors"
	"fmt"
	"iter"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
)

var ended1 = time.Date(2026, 10, 1, 2, 30, 0, 0, time.UTC)

// exampleCommit is the record of a committed snapshot.
func exampleCommit() Commit {
	s := exampleSnapshot()
	s.Pages = exampleBase()
	s.Segment = backup.Segment{Attempt: backup.PackID{1, 2, 3}, Parts: 2, Checkpoint: true}
	return NewCommit(s, ended1)
}

// amendedCommit is an amended record, whose segment is based on another snapshot than the first
// was.
func amendedCommit() Commit {
	s := exampleSnapshot()
	s.Pages = exampleBase()
	s.Segment = backup.Segment{Attempt: backup.PackID{1, 2, 3}, Parts: 2}
	c := NewCommit(s, ended1)
	c.Amend(3, &backup.Snapshot{Number: 4, ID: backup.SnapshotID{0xcd}})
	return c
}

// failedCommit is the record of a failed snapshot.
func failedCommit() Commit {
	s := exampleSnapshot()
	s.State, s.Reason, s.Base, s.BaseID, s.Source = backup.Failed, "the root is gone", 0, backup.SnapshotID{}, s.Shard.Source
	return NewCommit(s, ended1)
}

func exampleProblems() []backup.Problem {
	return []backup.Problem{
		{Path: "caf\xe9/locked", Op: "open", Err: "permission denied"},
		{Path: "", Op: "stat", Err: "input/output error"},
		{Path: "new\nline <&> \u2028 \ufffd", Op: "read", Err: "\x00"},
	}
}

func eachProblem(problems []backup.Problem) iter.Seq2[backup.Problem, error] {
	return func(yield func(backup.Problem, error) bool) {
		for _, p := range problems {
			if !yield(p, nil) {
				return
			}
		}
	}
}

func encodeCommit(t testing.TB, k keys, c Commit, problems []backup.Problem) []byte {
	t.Helper()
	data, err := EncodeCommit(k.Keys, snapshot, c, eachProblem(problems))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// An amended record is read as what it is, and what is none is refused.
func TestAmendedRecords(t *testing.T) {
	k := newKeys(t)
	id := func(b byte) string { return backup.SnapshotID{b}.String() }
	for name, test := range map[string]struct {
		change func(c *Commit)
		err    error
	}{
		"as it is":                       {func(*Commit) {}, nil},
		"without changes":                {func(c *Commit) { c.Segment = nil }, nil},
		"a checkpoint":                   {func(c *Commit) { c.BasedOn, c.Segment.Checkpoint = nil, true }, nil},
		"failed":                         {func(c *Commit) { *c = failedCommit(); c.Amend(3, nil) }, nil},
		"based on nothing":               {func(c *Commit) { c.BasedOn = nil }, backup.ErrCorrupt},
		"a checkpoint with a base":       {func(c *Commit) { c.Segment.Checkpoint = true }, backup.ErrCorrupt},
		"failed, with a base":            {func(c *Commit) { b := c.BasedOn; *c = failedCommit(); c.Amend(3, nil); c.BasedOn = b }, backup.ErrCorrupt},
		"based on itself":                {func(c *Commit) { c.BasedOn.Number = c.Snapshot.Number }, backup.ErrCorrupt},
		"based on number 0":              {func(c *Commit) { c.BasedOn.Number = 0 }, backup.ErrCorrupt},
		"based on what is no snapshot":   {func(c *Commit) { c.BasedOn.ID = id(1)[1:] }, backup.ErrCorrupt},
		"of version 1":                   {func(c *Commit) { c.Version = 1 }, backup.ErrCorrupt},
		"of version 3":                   {func(c *Commit) { c.Version = 3 }, backup.ErrInvalid},
		"the first record, of version 2": {func(c *Commit) { *c = exampleCommit(); c.Version = 2 }, backup.ErrInvalid},
	} {
		c := amendedCommit()
		test.change(&c)
		data := encodeCommit(t, k, c, nil)
		got, _, err := OpenAmended(data, snapshot, c.Amendment, k.trust())
		if !errors.Is(err, test.err) || err == nil && !reflect.DeepEqual(got, c) {
			t.Errorf("%s: %v, want %v; %+v", name, err, test.err, got)
		}
		if c.Amendment > 0 { // under another name it is not signed
			if _, _, err := OpenAmended(data, snapshot, c.Amendment+1, k.trust()); !errors.Is(err, backup.ErrCorrupt) {
				t.Errorf("%s, as another amendment: %v", name, err)
			}
		}
	}
}

func openCommit(data []byte, trust Trust) (c Commit, problems []backup.Problem, err error) {
	c, each, err := OpenCommit(data, snapshot, trust)
	if err != nil {
		return c, nil, err
	}
	for p, err := range each {
		if err != nil {
			return c, problems, err
		}
		problems = append(problems, p)
	}
	return c, problems, nil
}

func TestCommitComesBack(t *testing.T) {
	k := newKeys(t)
	for _, want := range []Commit{exampleCommit(), failedCommit()} {
		for _, problems := range [][]backup.Problem{nil, exampleProblems()} {
			got, gotProblems, err := openCommit(encodeCommit(t, k, want, problems), k.trust())
			want.Problems = int64(len(problems))
			if err != nil || !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotProblems, problems) {
				t.Errorf("%v\ngot  %+v, %q\nwant %+v, %q", err, got, gotProblems, want, problems)
			}
		}
	}
}

func TestNewCommit(t *testing.T) {
	c := exampleCommit()
	content, err := c.Content.PageSet()
	if err != nil || content != exampleBase() || *c.Segment != (CommitSegment{backup.PackID{1, 2, 3}.String(), 2, true}) {
		t.Errorf("content %+v, %v, segment %+v", content, err, c.Segment)
	}
	if c := failedCommit(); c.Content != nil || c.Segment != nil || c.Reason == "" || c.Snapshot.Base != nil || c.Snapshot.Read != "" {
		t.Errorf("failed: %+v", c)
	}
	s := exampleSnapshot()
	if c := NewCommit(s, ended1); c.Segment != nil || c.Content == nil {
		t.Errorf("a snapshot that changed nothing: %+v", c)
	}
}

// Any path can be read back unchanged, and texts are UTF-8.
func TestEveryProblemComesBack(t *testing.T) {
	k := newKeys(t)
	anyText := rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 30), func(b []byte) string { return string(b) })
	rapid.Check(t, func(rt *rapid.T) {
		problems := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) backup.Problem {
			return backup.Problem{Path: anyText.Draw(rt, "path"), Op: anyText.Draw(rt, "op"), Err: anyText.Draw(rt, "error")}
		}), 0, 5).Draw(rt, "problems")
		_, got, err := openCommit(encodeCommit(t, k, exampleCommit(), problems), k.trust())
		if err != nil || len(got) != len(problems) {
			rt.Fatalf("%d problems of %d: %v", len(got), len(problems), err)
		}
		for i, p := range problems {
			// Package json replaces each byte that is not UTF-8.
			want := backup.Problem{Path: p.Path, Op: string([]rune(p.Op)), Err: string([]rune(p.Err))}
			if got[i] != want {
				rt.Fatalf("got %q, want %q", got[i], want)
			}
		}
	})
}

// A snapshot may have more problems than fit into an object. The record has the total number.
func TestCommitOfManyProblems(t *testing.T) {
	k := newKeys(t)
	path := strings.Repeat("d/", 2000)
	n, taken := 100_000, 0
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	data, err := EncodeCommit(k.Keys, snapshot, exampleCommit(), func(yield func(backup.Problem, error) bool) {
		for i := range n {
			taken++
			if !yield(backup.Problem{Path: fmt.Sprintf("%s%d", path, i), Op: "open", Err: "permission denied"}, nil) {
				return
			}
		}
	})
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 128<<20 {
		t.Errorf("%d MiB were allocated", got>>20)
	}
	c, problems, err := openCommit(data, k.trust())
	if err != nil || c.Problems != int64(len(problems)) || len(problems) != taken || taken == n || taken < 1000 {
		t.Errorf("%d problems of %d, the record says %d, %d were asked for: %v", len(problems), n, c.Problems, taken, err)
	}
}

func TestEncodeCommitStopsAtAnError(t *testing.T) {
	broken := errors.New("broken")
	_, err := EncodeCommit(newKeys(t).Keys, snapshot, exampleCommit(), func(yield func(backup.Problem, error) bool) { yield(backup.Problem{}, broken) })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
