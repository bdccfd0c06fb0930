package prune

import (
	"testing"
	"time"
)

// An object is locked until the end that costs least, and frames that are needed for longer are
// copied.
func TestSplitCostsLeast(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	after := func(days int) time.Time { return now.AddDate(0, 0, days) }
	until := []time.Time{after(300), after(30), after(7), after(1)}
	for name, c := range map[string]struct {
		locked int   // days
		unused int64 // bytes
		copies [4]int64
		rest   time.Time
		splits bool
	}{
		"all of it is needed for as long": {copies: [4]int64{1000}},
		"little is needed for less":       {copies: [4]int64{1000, 50}},
		"a part is needed for a year":     {copies: [4]int64{100, 0, 0, 900}, rest: after(1), splits: true},
		"two parts are":                   {copies: [4]int64{100, 0, 100, 800}, rest: after(1), splits: true},
		"most is needed for a month":      {locked: 7, copies: [4]int64{100, 900, 0, 10}, rest: after(30), splits: true},
		"the rest is not needed":          {unused: 900, copies: [4]int64{100}, splits: true},
		"the rest is locked":              {locked: 7, copies: [4]int64{100, 0, 900}, rest: after(7), splits: true},
		"the object is locked for long":   {locked: 290, unused: 500, copies: [4]int64{500}},
	} {
		t.Run(name, func(t *testing.T) {
			o := lockCost{bytes: c.unused, need: after(300), end: after(max(c.locked, 1))}
			for n, bytes := range c.copies {
				o.bytes += bytes
				o.copies[n] = bytes
			}
			if rest, splits := o.split(until, now); !rest.Equal(c.rest) || splits != c.splits {
				t.Errorf("it is locked until %v, and splits: %t; want %v, %t", rest, splits, c.rest, c.splits)
			}
			o.fixed = true
			if _, splits := o.split(until, now); splits {
				t.Error("what cannot change is split")
			}
		})
	}
}
