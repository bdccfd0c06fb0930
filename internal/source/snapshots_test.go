package source

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
)

func TestNewest(t *testing.T) {
	for _, test := range []struct{ names, want string }{
		{"daily", "daily"},
		{"hourly.0", "hourly.0"},
		{"hourly.2 hourly.0 hourly.10 hourly.1", "hourly.0"},
		{"hourly.3 hourly.1 hourly.2", "hourly.1"}, // between two renames
		{"weekly_1 weekly_0", "weekly_0"},
		{"snap.57 snap.80 snap.9", "snap.80"},    // they grow: the first were deleted
		{"hourly.0 daily.0 daily.1", "hourly.0"}, // two counters
		{"hourly.0 hourly.1 manual", "manual"},   // not all of them are counters
		{"auto-9 auto-10 auto-8", "auto-10"},     // a hyphen does not make a counter
		{"s.0 s.10000", "s.10000"},               // too large for a counter
		{"s.1 s.02", "s.02"},                     // leading zeros: a date
		{"daily.2024-01-31_0010 daily.2024-02-01_0010 daily.2023-12-31_0010", "daily.2024-02-01_0010"},
		{"hourly.2024-01-31_1005 hourly.2024-01-31_1105 hourly.2024-01-31_0905", "hourly.2024-01-31_1105"},
		{"zfs-auto-snap_2024-01-31-1015 zfs-auto-snap_2024-01-31-1030", "zfs-auto-snap_2024-01-31-1030"},
		{"@GMT-2024.01.31-10.00.00 @GMT-2024.01.31-09.00.00", "@GMT-2024.01.31-10.00.00"},
		{"a.99999999999999999999999 a.100000000000000000000000", "a.100000000000000000000000"},
		{"a a1 a01", "a1"},
		{"0 1", "1"},
		{".0 .1", ".0"},
	} {
		names := strings.Fields(test.names)
		if got := Newest(names); got != test.want {
			t.Errorf("of %q the newest is %q, want %q", names, got, test.want)
		}
		slices.Reverse(names)
		if got := Newest(names); got != test.want {
			t.Errorf("of %q the newest is %q, want %q", names, got, test.want)
		}
	}
}

// Newest returns one of the names, and always the same, for any names in any order.
func TestNewestIsOne(t *testing.T) {
	name := rapid.StringMatching(`[a.]?[._]?[0-9]{0,5}`)
	rapid.Check(t, func(rt *rapid.T) {
		names := rapid.SliceOfNDistinct(name, 1, 6, func(s string) string { return s }).Draw(rt, "names")
		got := Newest(names)
		if !slices.Contains(names, got) {
			rt.Errorf("of %q the newest is %q", names, got)
		}
		if other := Newest(rapid.Permutation(names).Draw(rt, "order")); other != got {
			rt.Errorf("of %q the newest is %q, in another order %q", names, got, other)
		}
	})
}

func TestCheckPattern(t *testing.T) {
	for _, pattern := range []string{"*", ".snapshot/hourly.*", ".zfs/snapshot/*", "a/[0-9]?", `.snapshot/\*`, "...", "a b"} {
		if err := CheckPattern(pattern); err != nil {
			t.Errorf("%q: %v", pattern, err)
		}
	}
	for _, pattern := range []string{"", "/", "/etc", "a/", "a//b", "..", "a/../b", ".", "a/[", "a\x00", `a\`} {
		if err := CheckPattern(pattern); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%q: error %v, want ErrInvalid", pattern, err)
		}
	}
}
