package index

import (
	"fmt"
	"math"
	"math/big"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// Money is an amount in billionths of any currency.
type Money int64

// MaxMoney is the greatest price, and the greatest amount for a day.
const MaxMoney = Money(1e6 * moneyUnit)

const (
	moneyUnit   = 1_000_000_000
	moneyDigits = 9
)

// ParseMoney reads an amount, such as 0.0004: digits, and at most nine after a point. It fails with
// backup.ErrInvalid.
func ParseMoney(text string) (Money, error) {
	whole, fraction, point := strings.Cut(text, ".")
	digits := whole + fraction
	if strings.Trim(digits, "0123456789") != "" || whole == "" || point && fraction == "" || len(whole) > 7 || len(fraction) > moneyDigits {
		return 0, fmt.Errorf("%q is not an amount (0.0004): %w", text, backup.ErrInvalid)
	}
	amount := Money(0)
	for _, c := range digits + strings.Repeat("0", moneyDigits-len(fraction)) {
		amount = amount*10 + Money(c-'0')
	}
	if amount > MaxMoney {
		return 0, fmt.Errorf("%s is more than %s: %w", text, MaxMoney, backup.ErrInvalid)
	}
	return amount, nil
}

// String returns the form that ParseMoney reads.
func (m Money) String() string {
	text := fmt.Sprintf("%d.%09d", m/moneyUnit, m%moneyUnit)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// ScrubPrices are what a store charges. Zero prices cost nothing.
type ScrubPrices struct {
	Requests Money // of 1,000
	Bytes    Money // of 1 GiB that is read
}

// perCost is by how much exact costs are greater than Money.
var perCost = big.NewInt(1000 << 30)

// exact returns the cost, in 1/(1000 × 2^30) of Money: no price is rounded.
func (p ScrubPrices) exact(c ScrubCost) *big.Int {
	product := func(a, b, unit int64) *big.Int {
		n := new(big.Int).Mul(big.NewInt(a), big.NewInt(b))
		return n.Mul(n, big.NewInt(unit))
	}
	cost := product(c.Requests, int64(p.Requests), 1<<30)
	return cost.Add(cost, product(c.Bytes, int64(p.Bytes), 1000))
}

// Cost returns what reading costs, rounded up, and at most math.MaxInt64.
func (p ScrubPrices) Cost(c ScrubCost) Money {
	cost := p.exact(c)
	cost.Add(cost, perCost).Sub(cost, big.NewInt(1))
	if cost.Div(cost, perCost).IsInt64() {
		return Money(cost.Int64())
	}
	return math.MaxInt64
}

// allows reports whether reading so much costs at most limit.
func (p ScrubPrices) allows(c ScrubCost, limit Money) bool {
	return p.exact(c).Cmp(new(big.Int).Mul(big.NewInt(int64(limit)), perCost)) <= 0
}

// checkMoney fails with backup.ErrInvalid if the prices or the amount of a day are wrong.
func (s *ScrubSettings) checkMoney() error {
	switch {
	case min(s.Prices.Requests, s.Prices.Bytes, s.Spend) < 0 || max(s.Prices.Requests, s.Prices.Bytes, s.Spend) > MaxMoney:
		return fmt.Errorf("prices, and what a day may cost, are from 0 to %s: %w", MaxMoney, backup.ErrInvalid)
	case s.Spend > 0 && s.Prices == (ScrubPrices{}):
		return fmt.Errorf("an amount of %s a day needs a price, of requests or of bytes: %w", s.Spend, backup.ErrInvalid)
	}
	largest := ScrubCost{Requests: 1, Bytes: minScrubBytes}
	if s.Spend > 0 && !s.Prices.allows(largest, s.Spend) {
		return fmt.Errorf("reading one pack can cost %s, more than %s a day: %w", s.Prices.Cost(largest), s.Spend, backup.ErrInvalid)
	}
	return nil
}
