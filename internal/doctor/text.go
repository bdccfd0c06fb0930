package doctor

import (
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// finding combines the findings on one line, problems first.
func (v *verdict) finding() Finding {
	r := Finding{Status: OK}
	var seen, advice []string
	for _, b := range v.bad {
		if rank[b.Status] > rank[r.Status] {
			r.Status = b.Status
		}
		seen = append(seen, b.Seen)
		if b.Advice != "" {
			advice = append(advice, b.Advice)
		}
	}
	r.Seen = strings.Join(append(seen, v.good...), "; ")
	r.Advice = strings.Join(advice, "; ")
	return r
}

var rank = map[Status]int{OK: 0, NotTested: 1, Warning: 2, Failure: 3}

// oneLine returns an error's text without line breaks and other control characters, because servers
// may send any text.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
}

// duration formats a duration with three digits.
func duration(d time.Duration) string {
	switch d = d.Abs(); {
	case d < time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// size formats a number of bytes.
func size[N int | int64 | uint64](n N) string { return humanize.IBytes(uint64(max(n, 0))) }

// plural returns "1 file", "2 files".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// some returns the first elements of a list, and the number of the others.
func some(list []string) string {
	const first = 3
	text := strings.Join(list[:min(len(list), first)], ", ")
	if more := len(list) - first; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
