package storetest

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

func testRanges(t *testing.T, s store.Store) {
	data := content(100_000, 1)
	put(t, s, "packs/one/object", data)
	for _, c := range []struct {
		offset, length int64
		want           []byte
	}{
		{0, 1, data[:1]},
		{0, 100_000, data},
		{1, 10, data[1:11]},
		{99_999, 1, data[99_999:]},
		{50_000, 50_000, data[50_000:]},
		{0, 0, nil},
		{100_000, 0, nil},
		{-1, 1, data[99_999:]},
		{-16, 16, data[99_984:]},
		{-100_000, 100_000, data},
		{-100_000, 10, data[:10]}, // of the last bytes, the first of them
		{-20, 4, data[99_980:99_984]},
		{-20, 0, nil},
	} {
		got, err := s.GetRange(t.Context(), nil, "packs/one/object", c.offset, c.length)
		if err != nil {
			t.Errorf("%d bytes from %d: %v", c.length, c.offset, err)
		} else if !bytes.Equal(got, c.want) {
			t.Errorf("%d bytes from %d: got %d bytes, and not those", c.length, c.offset, len(got))
		}
	}
}

func testAppend(t *testing.T, s store.Store) {
	put(t, s, "object", []byte("0123456789"))
	dst := append(make([]byte, 0, 64), "kept "...)
	got, err := s.GetRange(t.Context(), dst, "object", 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != "kept 234" {
		t.Errorf("got %q", got)
	}
	if &got[0] != &dst[0] {
		t.Error("room in dst was not used")
	}
}

func testShort(t *testing.T, s store.Store) {
	put(t, s, "short", []byte("0123456789"))
	put(t, s, "empty", nil)
	for _, c := range []struct {
		name           string
		offset, length int64
	}{
		{"short", 0, 11},
		{"short", 9, 2},
		{"short", 10, 1},
		{"short", 11, 0},
		{"short", 1 << 40, 1},
		{"short", 0, 1 << 50}, // never allocated
		{"short", -11, 11},
		{"short", -11, 1},
		{"short", -11, 0},
		{"empty", 0, 1},
		{"empty", -1, 1},
	} {
		_, err := s.GetRange(t.Context(), nil, c.name, c.offset, c.length)
		if err == nil {
			t.Errorf("%s: %d bytes from %d: no error", c.name, c.length, c.offset)
			continue
		}
		wantError(t, s, err, backup.ErrCorrupt, c.name)
	}
}

func testInvalidRanges(t *testing.T, s store.Store) {
	put(t, s, "object", []byte("0123456789"))
	for _, c := range []struct{ offset, length int64 }{
		{0, -1}, {-4, 5}, {-4, -1}, {math.MaxInt64, 1}, {math.MinInt64, 1},
	} {
		_, err := s.GetRange(t.Context(), nil, "object", c.offset, c.length)
		wantError(t, s, err, backup.ErrInvalid, "object")
	}
}

func testGetBound(t *testing.T, s store.Store) {
	put(t, s, "object", []byte("0123456789"))
	if _, err := s.Get(t.Context(), "object", 10); err != nil {
		t.Error(err)
	}
	_, err := s.Get(t.Context(), "object", 9)
	wantError(t, s, err, backup.ErrInvalid, "object")
}

func testNotFound(t *testing.T, s store.Store) {
	put(t, s, "packs/one/object", []byte("x"))
	for _, name := range []string{"nothing", "packs/one/nothing", "packs/two/object", "packs/one/object/below"} {
		_, err := s.Get(t.Context(), name, 10)
		wantError(t, s, err, backup.ErrNotFound, name)
		_, err = s.GetRange(t.Context(), nil, name, 0, 1)
		wantError(t, s, err, backup.ErrNotFound, name)
		_, err = s.GetRange(t.Context(), nil, name, 0, 0)
		wantError(t, s, err, backup.ErrNotFound, name)
		_, err = s.Stat(t.Context(), name)
		wantError(t, s, err, backup.ErrNotFound, name)
	}
	// The common prefix of objects is not an object.
	_, err := s.Stat(t.Context(), "packs/one")
	wantError(t, s, err, backup.ErrNotFound, "packs/one")
	_, err = s.Get(t.Context(), "packs/one", 10)
	wantError(t, s, err, backup.ErrNotFound, "packs/one")
}

func testList(t *testing.T, s store.Store) {
	want := map[string]int64{}
	for i := range 40 {
		name := fmt.Sprintf("packs/%c/object-%02d", 'a'+i%4, i)
		put(t, s, name, make([]byte, i))
		want[name] = int64(i)
	}
	put(t, s, "repository", []byte("{}"))
	put(t, s, "packs.old", []byte("{}"))
	put(t, s, "keys/1/2/3/4", []byte("deep"))
	for _, c := range []struct {
		prefix string
		want   int
	}{
		{"packs/", 40},
		{"packs/a/", 10},
		{"packs/a", 10},
		{"packs/a/object-0", 3}, // 00, 04, 08
		{"packs/a/object-00", 1},
		{"packs/a/object-00/", 0},
		{"pack", 41},
		{"packs", 41},
		{"keys/", 1},
		{"repository", 1},
		{"repository/", 0},
		{"r", 1},
		{"nothing/", 0},
		{"", 43},
	} {
		if got := names(t.Context(), t, s, c.prefix); len(got) != c.want {
			t.Errorf("%q: got %d objects, want %d: %v", c.prefix, len(got), c.want, got)
		}
	}
	if got := names(t.Context(), t, s, "packs/"); !maps.Equal(got, want) {
		t.Errorf("names and sizes: got %v, want %v", got, want)
	}
}

func testListNothing(t *testing.T, s store.Store) {
	if got := names(t.Context(), t, s, ""); len(got) != 0 {
		t.Errorf("an empty store lists %v", got)
	}
}

func testListStops(t *testing.T, s store.Store) {
	for i := range 10 {
		put(t, s, fmt.Sprintf("packs/one/object-%d", i), []byte("x"))
	}
	names(t.Context(), t, s, "packs/") // the store now starts what it starts only once
	before := runtime.NumGoroutine()
	for range 50 {
		for _, err := range s.List(t.Context(), "packs/") {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	wantGoroutines(t, before+10) // idle connections have two each
}

func wantGoroutines(t *testing.T, limit int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > limit {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, expected at most %d", runtime.NumGoroutine(), limit)
		}
		runtime.Gosched()
	}
}
