package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A window is a period of the day, on some days of the week. If its end is not after its begin, it
// ends on the next day, and belongs to the day on which it begins.
type window struct {
	days       [7]bool // by time.Weekday
	begin, end int     // minutes of the day
}

const dayMinutes = 24 * 60

var dayNames = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// parseWindow parses "20:00-06:00", "mon-fri 20:00-06:00", "sat,sun 00:00-24:00".
func parseWindow(text string) (window, error) {
	fail := func() (window, error) {
		return window{}, fmt.Errorf("window %q is not like \"mon-fri 20:00-06:00\" (a whole day is 00:00-24:00): %w", text, backup.ErrInvalid)
	}
	fields := strings.Fields(strings.ToLower(text))
	w := window{}
	switch len(fields) {
	case 1:
		w.days = [7]bool{true, true, true, true, true, true, true}
	case 2:
		if !w.setDays(fields[0]) {
			return fail()
		}
	default:
		return fail()
	}
	begin, end, ok := strings.Cut(fields[len(fields)-1], "-")
	var okBegin, okEnd bool
	w.begin, okBegin = minutes(begin)
	w.end, okEnd = minutes(end)
	if !ok || !okBegin || !okEnd || w.begin == w.end || w.begin == dayMinutes {
		return fail()
	}
	return w, nil
}

func (w *window) setDays(text string) bool {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, to := slices.Index(dayNames, first), slices.Index(dayNames, last)
		if from < 0 || to < 0 {
			return false
		}
		for day := from; ; day = (day + 1) % len(dayNames) {
			w.days[day] = true
			if day == to {
				break
			}
		}
	}
	return true
}

// minutes parses "20:00" to minutes of the day; 24:00 is the end of the day.
func minutes(text string) (int, bool) {
	if text == "24:00" {
		return dayMinutes, true
	}
	t, err := time.Parse("15:04", text)
	return t.Hour()*60 + t.Minute(), err == nil
}

// has reports whether t, in the policy's time zone, is in the window.
func (w *window) has(t time.Time) bool {
	today, now := t.Weekday(), t.Hour()*60+t.Minute()
	if w.end > w.begin {
		return w.days[today] && now >= w.begin && now < w.end
	}
	yesterday := (today + 6) % 7
	return w.days[today] && now >= w.begin || w.days[yesterday] && now < w.end
}
