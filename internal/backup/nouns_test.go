package backup

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSnapshotIDComesBackFromItsText(t *testing.T) {
	id := NewSnapshotID()
	got, err := ParseSnapshotID(id.String())
	if err != nil || got != id {
		t.Errorf("%s is read as %s, %v", id, got, err)
	}
	if got, err := ParseSnapshotID(strings.ToUpper(id.String())); err != nil || got != id {
		t.Errorf("capitals are read as %s, %v", got, err)
	}
	if len(id.Short()) != 8 || !strings.HasPrefix(id.String(), id.Short()) {
		t.Errorf("%s is %s for short", id, id.Short())
	}
	if id == NewSnapshotID() {
		t.Error("two new ids are the same")
	}
}

func TestParseSnapshotIDRefuses(t *testing.T) {
	for _, s := range []string{"", "00", strings.Repeat("0", 31), strings.Repeat("0", 33), strings.Repeat("0", 31) + "g", " " + strings.Repeat("0", 31), strings.Repeat("é", 16)} {
		if id, err := ParseSnapshotID(s); !errors.Is(err, ErrInvalid) || id != (SnapshotID{}) {
			t.Errorf("%q is read as %s, %v", s, id, err)
		}
	}
}

func TestChunkIDIsTheBeginningOfTheHash(t *testing.T) {
	h := ChunkHash{0: 1, 15: 2, 16: 3}
	if got := h.ID(); got != (ChunkID{0: 1, 15: 2}) {
		t.Errorf("got %s", got)
	}
}

func TestZeroFingerprintMatchesNothing(t *testing.T) {
	var zero Fingerprint
	one := Fingerprint{1}
	if zero.Matches(zero) || zero.Matches(one) || one.Matches(zero) || !one.Matches(one) {
		t.Error("zero matches something, or one does not match itself")
	}
}

func TestTimeComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Approximately the years that time.Time can represent.
		want := Time{rapid.Int64Range(-1<<36, 1<<36).Draw(t, "sec"), rapid.Uint32Range(0, 999_999_999).Draw(t, "nsec")}
		if got := TimeOf(want.Time()); got != want {
			t.Fatalf("%+v comes back as %+v", want, got)
		}
	})
	half := time.Date(1969, 12, 31, 23, 59, 59, 5e8, time.UTC)
	if got := TimeOf(half); got != (Time{-1, 5e8}) {
		t.Errorf("half a second before 1970 is %+v", got)
	}
}

func TestTimesCompareAsTheyFollow(t *testing.T) {
	ascending := []Time{{math.MinInt64, 0}, {-1, 0}, {-1, 999_999_999}, {0, 0}, {0, 1}, {1, 0}, {math.MaxInt64, 1}}
	for i, a := range ascending {
		for j, b := range ascending {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got := a.Compare(b); got != want {
				t.Errorf("%+v against %+v: %d, want %d", a, b, got, want)
			}
		}
	}
	if !(Time{}).IsZero() || (Time{Nsec: 1}).IsZero() || (Time{Sec: -1}).IsZero() {
		t.Error("only the zero Time is none")
	}
}

// Add must include every field: each field of a sum is the sum of that field.
func TestCountsAddEveryField(t *testing.T) {
	var a, b Counts
	fill := func(c *Counts, by int) {
		v := reflect.ValueOf(c).Elem()
		for i := range v.NumField() {
			if f := v.Field(i); f.CanInt() {
				f.SetInt(int64(by * (i + 1)))
			} else {
				f.SetFloat(float64(by * (i + 1)))
			}
		}
	}
	fill(&a, 1)
	fill(&b, 10)
	a.Add(b)
	fill(&b, 11)
	if a != b {
		t.Errorf("got %+v, want %+v", a, b)
	}
}

func TestSnapshotIsCompleteWhenAllIsSettled(t *testing.T) {
	for _, test := range []struct {
		s    Snapshot
		want bool
	}{
		{Snapshot{}, false},
		{Snapshot{TasksAnnounced: 1}, false},
		{Snapshot{TasksAnnounced: 1, TasksSettled: 1}, true},
		{Snapshot{TasksAnnounced: 2, TasksSettled: 1}, false},
		{Snapshot{TasksAnnounced: 1, TasksSettled: 1, BatchesAnnounced: 3, BatchesSettled: 2}, false},
		{Snapshot{TasksAnnounced: 1, TasksSettled: 1, BatchesAnnounced: 3, BatchesSettled: 3}, true},
	} {
		if got := test.s.Complete(); got != test.want {
			t.Errorf("%+v: complete %t", test.s, got)
		}
	}
}

func TestPlainNames(t *testing.T) {
	for _, name := range []string{"nas1", "nas-1.example.com", "10.0.0.7", "fd00::1", "büro_2", "rack7@oslo", strings.Repeat("x", MaxNameBytes)} {
		if err := CheckPlainName("filer", name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "bad name/x", "a b", "a/b", "-v", ".hidden", "a\n", "a\x00", "\xff", `a"b`, "a,b", "a=b", "$HOME", "*", strings.Repeat("x", MaxNameBytes+1)} {
		if err := CheckPlainName("filer", name); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}
