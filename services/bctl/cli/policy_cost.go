package cli

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/bctl/bctl/internal/index"
)

// gigabyte is the unit of prices, as stores have them.
const gigabyte = 1e9

// priceFlag adds the flag of the price of a gigabyte for a month.
func priceFlag(flags *pflag.FlagSet, to *float64) {
	flags.Var(&parsed[float64]{to, "", "string", parsePrice}, "price-per-gb-month", "also estimate the cost, at this `PRICE` of 10⁹ bytes for a month")
}

func parsePrice(text string) (float64, error) {
	price, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(price) || price <= 0 || price > 1e6 {
		return 0, wrongValue("is not a price (0.02)")
	}
	return price, nil
}

// storedPacks returns the bytes of all packs that are in the store.
func storedPacks(ctx context.Context, i index.Index) (stored int64, err error) {
	for p, err := range i.Packs(ctx) {
		if err != nil {
			return 0, err
		}
		if !p.Deleting {
			stored += p.Bytes
		}
	}
	return stored, nil
}

// most returns the most bytes that the store has after the year, if nothing frees any: those that
// it has now, and those that the backups of the measured shards add.
func (s *simulation) most() int64 { return s.stored + s.total.added }

// cost returns the maximum cost of the year. Each month costs the mean of the bytes at its
// beginning and at its end.
func (s *simulation) cost() float64 {
	cost, bytes := 0.0, float64(s.stored)
	for _, m := range s.months {
		added := float64(m.added)
		cost += (bytes + added/2) / gigabyte * s.price
		bytes += added
	}
	return cost
}

// printMost prints the upper bounds of the year.
func (a *app) printMost(s *simulation) error {
	if s.total.measured == 0 {
		return nil
	}
	_, err := fmt.Fprintf(a.out, "at most: %s are stored now, %s after the year\n", size(s.stored), size(s.most()))
	if err == nil && s.price > 0 {
		_, err = fmt.Fprintf(a.out, "cost: at most %.2f for the year, at %s per GB and month\n", s.cost(), strconv.FormatFloat(s.price, 'f', -1, 64))
	}
	return err
}
