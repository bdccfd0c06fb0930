package index

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// Amounts are read as they are written, without rounding.
func TestMoney(t *testing.T) {
	for text, want := range map[string]Money{"0": 0, "0.0004": 400_000, "1.5": 1_500_000_000, "0.000000001": 1, "1000000": MaxMoney, "12.000000010": 12_000_000_010} {
		if got, err := ParseMoney(text); got != want || err != nil {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ".", "1.", ".5", "-1", "+1", "1e3", "1,5", " 1", "0.0000000001", "1000000.1", "1000001", "00000001", "NaN", "1.2.3", "٣"} {
		if got, err := ParseMoney(text); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%q is %s, %v", text, got, err)
		}
	}
	for m, want := range map[Money]string{0: "0", 1: "0.000000001", 400_000: "0.0004", 1_500_000_000: "1.5", 10 * moneyUnit: "10"} {
		if m.String() != want {
			t.Errorf("%s, want %s", m, want)
		}
	}
}

// Costs are exact: a day allows the last byte that the amount pays for, and not the next one.
func TestScrubCost(t *testing.T) {
	prices := ScrubPrices{Requests: 400_000, Bytes: 90_000_000} // 0.0004 and 0.09
	s := Scrub{ScrubSettings: ScrubSettings{Within: time.Hour, Prices: prices, Spend: moneyUnit}}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
	// 1 buys 1,000 requests and, for 0.9996, (0.9996 / 0.09) × 2^30 = 11,925,692,525.2 bytes.
	const bytes = 11_925_692_525
	for _, test := range []struct {
		cost ScrubCost
		want bool
	}{
		{ScrubCost{1000, bytes}, true},
		{ScrubCost{1000, bytes + 1}, false},
		{ScrubCost{1001, bytes}, false},
		{ScrubCost{2_500_000, 0}, true},
		{ScrubCost{2_500_000, 1}, false},
		{ScrubCost{math.MaxInt64, math.MaxInt64}, false},
	} {
		if s.Allows(test.cost) != test.want {
			t.Errorf("%+v: %t", test.cost, !test.want)
		}
	}
	s.Today = ScrubCost{999, bytes}
	if !s.Allows(ScrubCost{1, 0}) || s.Allows(ScrubCost{1, 1}) {
		t.Error("what was read today does not count")
	}
	if got := prices.Cost(ScrubCost{Requests: 1}); got != 400 {
		t.Errorf("a request costs %s", got)
	}
	if got := prices.Cost(ScrubCost{Bytes: 1}); got != 1 {
		t.Errorf("a byte costs %s: it is rounded up", got)
	}
	if got := prices.Cost(ScrubCost{math.MaxInt64, math.MaxInt64}); got <= 0 {
		t.Errorf("too much costs %s", got)
	}
	s.Packs, s.Bytes = 0, 30<<30
	if days := s.Days(); math.Abs(days-2.7) > 1e-9 {
		t.Errorf("%g days", days)
	}
	for what, wrong := range map[string]ScrubSettings{
		"no price":         {Within: time.Hour, Spend: 1},
		"negative":         {Within: time.Hour, Prices: ScrubPrices{Bytes: -1}},
		"too much":         {Within: time.Hour, Prices: ScrubPrices{Bytes: MaxMoney + 1}},
		"less than a pack": {Within: time.Hour, Prices: prices, Spend: 1000},
	} {
		if err := wrong.Check(); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
