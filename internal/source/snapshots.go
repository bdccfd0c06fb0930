package source

import (
	"fmt"
	"path"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// CheckPattern returns an error that wraps backup.ErrInvalid unless pattern is valid for source
// snapshots: components in the syntax of path.Match, none of them empty, "." or "..".
func CheckPattern(pattern string) error {
	for component := range strings.SplitSeq(pattern, "/") {
		if component == "" || component == "." || component == ".." || strings.IndexByte(component, 0) >= 0 {
			return fmt.Errorf("pattern %q: want a path below the source, as .snapshot/hourly.*: %w", pattern, backup.ErrInvalid)
		}
		if _, err := path.Match(component, ""); err != nil {
			return fmt.Errorf("pattern %q: %w: %w", pattern, err, backup.ErrInvalid)
		}
	}
	return nil
}

// IsPattern reports whether a component of a pattern must be matched, and is not a literal name.
func IsPattern(component string) bool { return strings.ContainsAny(component, `*?[\`) }

const (
	maxCounter   = 10_000 // from here on, numbers are dates
	firstCounter = 1      // maximum of the newest: 0 is missing for a moment during a rotation
)

// Newest returns the newest of the names of source snapshots. names must not be empty.
//
// Names that consist of the same beginning, a dot or an underscore, and a number are rotating
// counters: the smallest is the newest (hourly.0 becomes hourly.1 when the next snapshot is taken).
// This requires that the smallest number is 0 or 1, that none has leading zeros, and that all are
// below 10,000. Otherwise, the names contain a date or a growing number, and the last name in
// natural order is the newest. Natural order compares digits as numbers (daily.2024-01-31_0010,
// auto-9, auto-10).
func Newest(names []string) string {
	newest := names[0]
	least, rotating := -1, true
	var stem string
	for i, name := range names {
		of, n, ok := counter(name)
		if i == 0 {
			stem = of
		}
		rotating = rotating && ok && of == stem
		if rotating && (least < 0 || n < least) {
			least = n
		}
		if naturalLess(newest, name) {
			newest = name
		}
	}
	if rotating && least <= firstCounter {
		return fmt.Sprint(stem, least)
	}
	return newest
}

// counter splits a name that ends in a dot or underscore and a number.
func counter(name string) (stem string, n int, ok bool) {
	at := len(name)
	for at > 0 && isDigit(name[at-1]) {
		at--
	}
	digits := name[at:]
	if at == 0 || digits == "" || name[at-1] != '.' && name[at-1] != '_' || digits[0] == '0' && len(digits) > 1 {
		return "", 0, false
	}
	for i := range len(digits) {
		if n = 10*n + int(digits[i]-'0'); n >= maxCounter {
			return "", 0, false
		}
	}
	return name[:at], n, true
}

// naturalLess compares runs of digits as numbers, and all other bytes as bytes.
func naturalLess(a, b string) bool {
	x, y := a, b
	for x != "" && y != "" {
		if isDigit(x[0]) && isDigit(y[0]) {
			var m, n string
			m, x = cutNumber(x)
			n, y = cutNumber(y)
			if m != n {
				return len(m) < len(n) || len(m) == len(n) && m < n
			}
			continue
		}
		if x[0] != y[0] {
			return x[0] < y[0]
		}
		x, y = x[1:], y[1:]
	}
	if len(x) != len(y) {
		return len(x) < len(y)
	}
	return a < b // they differ at most in leading zeros
}

// cutNumber splits off the leading digits of s, without leading zeros.
func cutNumber(s string) (digits, rest string) {
	end := 0
	for end < len(s) && isDigit(s[end]) {
		end++
	}
	return strings.TrimLeft(s[:end], "0"), s[end:]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
