package selection

import (
	"fmt"
	"strings"
)

// A byteSet is a set of bytes.
type byteSet [4]uint64

func (s *byteSet) has(c byte) bool { return s[c/64]&(1<<(c%64)) != 0 }

func (s *byteSet) addRange(from, to byte) {
	for c := int(from); c <= int(to); c++ {
		s[c/64] |= 1 << (c % 64)
	}
}

func (s *byteSet) invert() {
	for i := range s {
		s[i] = ^s[i]
	}
}

// parseSet parses the "[…]" at the beginning of glob, and returns its length.
//
// A leading "!" or "^" negates the set; a leading "]" is literal; "a-z" is a range; "\" escapes;
// "[:digit:]" and the like are the POSIX classes.
func parseSet(glob string) (*byteSet, int, error) {
	set := new(byteSet)
	i := 1
	negated := i < len(glob) && (glob[i] == '!' || glob[i] == '^')
	if negated {
		i++
	}
	low := -1 // lower end of a range, if "-" follows
	for first := true; ; first = false {
		if i >= len(glob) {
			return nil, 0, errBracket
		}
		c := glob[i]
		switch {
		case c == ']' && !first:
			if negated {
				set.invert()
			}
			return set, i + 1, nil
		case c == '-' && low >= 0 && i+1 < len(glob) && glob[i+1] != ']':
			high, length, err := setByte(glob[i+1:])
			if err != nil {
				return nil, 0, err
			}
			set.addRange(byte(low), high) // empty if the bounds are reversed
			i += 1 + length
			low = -1
		case c == '[' && strings.HasPrefix(glob[i+1:], ":"):
			length, err := set.addClass(glob[i:])
			if err != nil {
				return nil, 0, err
			}
			if low = -1; length == 0 { // no ":]": an ordinary '['
				set.addRange('[', '[')
				low, length = '[', 1
			}
			i += length
		default:
			c, length, err := setByte(glob[i:])
			if err != nil {
				return nil, 0, err
			}
			set.addRange(c, c)
			low = int(c)
			i += length
		}
	}
}

// setByte reads one byte of a set, which may be escaped.
func setByte(glob string) (c byte, length int, err error) {
	if glob[0] != '\\' {
		return glob[0], 1, nil
	}
	if len(glob) < 2 {
		return 0, 0, errBracket
	}
	return glob[1], 2, nil
}

// addClass adds the "[:name:]" at the beginning of glob, and returns its length. The length is 0 if
// a "]" without ":" ends it.
func (s *byteSet) addClass(glob string) (length int, err error) {
	end := strings.IndexByte(glob[2:], ']')
	if end < 0 {
		return 0, errBracket
	}
	name, ok := strings.CutSuffix(glob[2:2+end], ":")
	if !ok {
		return 0, nil
	}
	ranges, ok := classes[name]
	if !ok {
		return 0, fmt.Errorf("has an unknown class [:%s:]", name)
	}
	for i := 0; i < len(ranges); i += 2 {
		s.addRange(ranges[i], ranges[i+1])
	}
	return 2 + end + 1, nil
}

// classes are the POSIX classes for ASCII: pairs of first and last byte.
var classes = map[string]string{
	"alnum":  "09AZaz",
	"alpha":  "AZaz",
	"blank":  "  \t\t",
	"cntrl":  "\x00\x1f\x7f\x7f",
	"digit":  "09",
	"graph":  "!~",
	"lower":  "az",
	"print":  " ~",
	"punct":  "!/:@[`{~",
	"space":  "  \t\r",
	"upper":  "AZ",
	"xdigit": "09AFaf",
}
