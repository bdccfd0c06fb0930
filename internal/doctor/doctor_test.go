package doctor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func collect(ctx context.Context, groups ...Group) (lines []string, s Summary) {
	s = Run(ctx, groups, func(o Outcome) { lines = append(lines, o.ID+" "+string(o.Status)+" "+o.Seen) })
	return lines, s
}

// A check that hangs and ignores its context is a failure after its time limit. Checks that need it
// are not tested; other checks and groups are not delayed.
func TestACheckThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		closed, other := false, time.Duration(0)
		begin := time.Now()
		lines, s := collect(t.Context(),
			Group{Name: "a", Close: func() { closed = true }, Checks: []Check{
				{ID: "a.hangs", Timeout: 10 * time.Second, Run: func(context.Context) Finding { <-release; return ok("") }},
				{ID: "a.needs", Needs: []string{"a.hangs"}, Run: func(context.Context) Finding { return ok("ran") }},
				{ID: "a.needs it too", Needs: []string{"a.needs"}, Run: func(context.Context) Finding { return ok("ran") }},
				{ID: "a.apart", Run: func(context.Context) Finding { return ok("ran") }},
			}},
			Group{Name: "b", Checks: []Check{{ID: "b", Run: func(context.Context) Finding { other = time.Since(begin); return warn("advice", "ran") }}}})
		want := []string{"a.hangs failure no answer within 10s", "a.needs not_tested because of a.hangs", "a.needs it too not_tested because of a.hangs", "a.apart ok ran", "b warning ran"}
		if !slices.Equal(lines, want) {
			t.Errorf("%q", lines)
		}
		if (s != Summary{OK: 1, Warnings: 1, Failures: 1, NotTested: 2}) {
			t.Errorf("%+v", s)
		}
		if took := time.Since(begin); took != 11*time.Second || other != 0 {
			t.Errorf("it took %v, and the other group waited %v", took, other)
		}
		if closed {
			t.Error("what a check still uses was closed")
		}
		close(release)
	})
}

// A check that returns when its context ends reports where it was.
func TestACheckThatListens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		closed := false
		lines, _ := collect(t.Context(), Group{Name: "a", Close: func() { closed = true }, Checks: []Check{
			{ID: "a", Run: func(ctx context.Context) Finding { <-ctx.Done(); return fail("x", "%v", context.Cause(ctx)) }},
		}})
		if want := []string{"a failure " + errTooLong.Error()}; !slices.Equal(lines, want) || !closed {
			t.Errorf("%q, closed %v", lines, closed)
		}
	})
}

// An interrupted run ends immediately, and reports the checks that were not run.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		release := make(chan struct{})
		begin := time.Now()
		lines, s := collect(ctx, Group{Name: "a", Checks: []Check{
			{ID: "a.1", Run: func(context.Context) Finding { cancel(errors.New("Ctrl-C")); <-release; return ok("") }},
			{ID: "a.2", Run: func(context.Context) Finding { return ok("ran") }},
		}})
		if want := []string{"a.1 not_tested interrupted", "a.2 not_tested interrupted"}; !slices.Equal(lines, want) || s.NotTested != 2 {
			t.Errorf("%q %+v", lines, s)
		}
		if time.Since(begin) != unwind {
			t.Errorf("it took %v", time.Since(begin))
		}
		close(release)
	})
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	var v verdict
	v.ok("fine")
	v.add(warn("do this", "not so good"))
	v.add(fail("do that", "bad"))
	v.add(ok("fine, too"))
	if got, want := v.finding(), (Finding{Failure, "not so good; bad; fine; fine, too", "do this; do that"}); got != want {
		t.Errorf("%+v", got)
	}
}

func TestSkew(t *testing.T) {
	t.Parallel()
	here := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		ahead, trip, grain time.Duration
		status             Status
		text               string
	}{
		{0, time.Millisecond, 0, OK, "(± 0.5 ms)"},
		{1900 * time.Millisecond, 0, 0, OK, "1.9 s ahead"},
		{-3 * time.Second, 0, 0, Warning, "3 s behind"},
		{3 * time.Second, 4 * time.Second, 0, OK, "± 2 s"},        // it may be due to the round trip
		{-500 * time.Millisecond, 0, time.Second, OK, "± 500 ms"}, // a Date header
		{time.Hour, 0, time.Second, Failure, "60 min ahead"},
		{-6 * time.Minute, time.Second, 0, Failure, "6 min behind"},
	} {
		r := skew(here.Add(c.trip/2+c.ahead), here, here.Add(c.trip), c.grain)
		if r.Status != c.status || !strings.Contains(r.Seen, c.text) || (r.Advice == "") != (r.Status == OK) {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}

func TestForPeople(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		duration(1500 * time.Nanosecond): "0.0015 ms", duration(-20 * time.Millisecond): "20 ms", duration(90 * time.Second): "90 s",
		duration(5 * time.Minute): "5 min", duration(3 * time.Hour): "3 h", duration(50 * time.Hour): "2 days",
		size(5): "5 B", size(2048): "2.0 KiB", size(3 << 30): "3.0 GiB", plural(1, "file"): "1 file", plural(0, "file"): "0 files",
		some([]string{"a", "b", "c", "d"}): "a, b, c and 1 more", some([]string{"a"}): "a",
		oneLine(errors.New("a\nb\x1b[31m c")): "a b [31m c",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
