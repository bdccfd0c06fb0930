package selection

// Why this is our own code: of the available libraries, go-gitignore (sabhiram) treats "[!a]" as
// "[a]" and does not support "?" and "\ ", and go-git's matcher is filepath.Match, which supports
// neither "[!a]" nor "[[:alpha:]]" and is part of a large module. A wrong exclusion is lost data.

import (
	"errors"
	"fmt"
	"strings"
)

// A pattern is one compiled gitignore pattern.
type pattern struct {
	negated       bool // a match includes the path again
	directoryOnly bool
	anchored      bool // matched against the path; otherwise against the last component

	literal string  // prefix of every match
	suffix  bool    // rest is one "*" and literal bytes, which are in tail
	tail    string  // suffix of every match, if suffix is set
	rest    []token // after literal
}

// match reports whether the pattern matches this path.
func (p *pattern) match(path, base string, isDir bool) bool {
	if p.directoryOnly && !isDir {
		return false
	}
	subject := base
	if p.anchored {
		subject = path
	}
	subject, ok := strings.CutPrefix(subject, p.literal)
	switch {
	case !ok:
		return false
	case len(p.rest) == 0:
		return subject == ""
	case p.suffix:
		return strings.HasSuffix(subject, p.tail)
	}
	return matchTokens(p.rest, subject)
}

var (
	errEmpty        = errors.New("is empty")
	errComment      = errors.New(`is a comment; for a name that begins with "#" write "\#"`)
	errBackslash    = errors.New(`ends in a "\" that escapes nothing`)
	errBracket      = errors.New(`has a "[" without its "]"`)
	errControl      = errors.New("has a NUL or a newline")
	errDoubledSlash = errors.New(`has an empty component ("//"), and no path has`)
)

// compile parses one pattern. The steps and their order are git's.
func compile(text string) (p pattern, err error) {
	switch {
	case len(text) > MaxPatternBytes:
		return p, fmt.Errorf("has more than %d bytes", MaxPatternBytes)
	case strings.ContainsAny(text, "\x00\n"):
		return p, errControl
	case strings.HasPrefix(text, "#"):
		return p, errComment
	}
	text = trimSpaces(text)
	text, p.negated = strings.CutPrefix(text, "!")
	text, p.directoryOnly = strings.CutSuffix(text, "/")
	p.anchored = strings.Contains(text, "/")
	text = strings.TrimPrefix(text, "/")
	if text == "" {
		return p, errEmpty
	}
	if strings.Contains(text, "//") || strings.HasPrefix(text, "/") || strings.HasSuffix(text, "/") {
		return p, errDoubledSlash
	}
	// The part before the first special byte is compared literally. The rest is a pattern of its
	// own: "a/b**/c" is "a/b" followed by "**/c".
	n := strings.IndexAny(text, `*?[\`)
	if n < 0 {
		p.literal = text
		return p, nil
	}
	p.literal = text[:n]
	if p.rest, err = tokenize(text[n:], p.anchored); err != nil {
		return p, err
	}
	if !p.anchored && text[n] == '*' && !strings.ContainsAny(text[n+1:], `*?[\`) {
		p.suffix, p.tail = true, text[n+1:]
	}
	return p, nil
}

// trimSpaces removes the trailing spaces of a pattern that no "\" escapes.
func trimSpaces(text string) string {
	end := 0 // after the last significant byte
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case ' ':
			continue
		case '\\':
			i++
		}
		end = i + 1
	}
	return text[:min(end, len(text))]
}

// A token is one element of a pattern.
type token struct {
	op      op
	literal byte
	set     *byteSet
}

type op uint8

const (
	opByte          op = iota // the byte literal
	opAny                     // any byte except '/'
	opSet                     // a byte of set
	opStar                    // any number of bytes except '/'
	opStarStar                // any number of bytes: "**" as the last component
	opStarStarSlash           // nothing, or any number of bytes that end in '/': "**/"
)

// tokenize splits glob into tokens. "**" differs from "*" only in an anchored pattern, because a
// name has no '/'.
func tokenize(glob string, anchored bool) ([]token, error) {
	var tokens []token
	for i := 0; i < len(glob); {
		switch c := glob[i]; c {
		case '*':
			start := i
			for i < len(glob) && glob[i] == '*' {
				i++
			}
			token := token{op: opStar}
			if rest := glob[i:]; anchored && i-start > 1 && (start == 0 || glob[start-1] == '/') {
				switch {
				case rest == "":
					token.op = opStarStar
				case rest[0] == '/':
					token.op = opStarStarSlash
					i++
				case strings.HasPrefix(rest, `\/`): // accepted, but not as "**/": the '/' is required
					token.op = opStarStar
				}
			}
			tokens = append(tokens, token)
		case '?':
			tokens = append(tokens, token{op: opAny})
			i++
		case '[':
			set, length, err := parseSet(glob[i:])
			if err != nil {
				return nil, err
			}
			tokens = append(tokens, token{op: opSet, set: set})
			i += length
		case '\\':
			if i++; i == len(glob) {
				return nil, errBackslash
			}
			c = glob[i]
			fallthrough
		default:
			tokens = append(tokens, token{op: opByte, literal: c})
			i++
		}
	}
	return tokens, nil
}

// matchTokens reports whether tokens match all of s. It proceeds from left to right. On a mismatch,
// it returns to the last star and lets that match one more byte; a "**" is always further back than
// any "*" after it. Earlier stars never need another try, so the time is at most
// len(tokens)·len(s)².
func matchTokens(tokens []token, s string) bool {
	const none = -1
	star, starAt := none, 0 // token after the last "*", and the position in s at which it was tried
	deep, deepAt := none, 0 // the same for "**" and "**/"
	t, i := 0, 0
	for {
		if t < len(tokens) {
			switch k := &tokens[t]; {
			case k.op == opStar:
				t++
				star, starAt = t, i
				continue
			case k.op == opStarStar || k.op == opStarStarSlash:
				t++
				deep, deepAt, star = t, i, none
				continue
			case i < len(s) && k.takes(s[i]):
				t++
				i++
				continue
			}
		} else if i == len(s) {
			return true
		}
		switch {
		case star != none && starAt < len(s) && s[starAt] != '/':
			starAt++
			t, i = star, starAt
		case deep != none && deepAt < len(s):
			if deepAt++; tokens[deep-1].op == opStarStarSlash {
				slash := strings.IndexByte(s[deepAt-1:], '/')
				if slash < 0 {
					return false
				}
				deepAt += slash
			}
			t, i, star = deep, deepAt, none
		default:
			return false
		}
	}
}

func (k *token) takes(c byte) bool {
	switch k.op {
	case opByte:
		return c == k.literal
	case opAny:
		return c != '/'
	default:
		return k.set.has(c) && c != '/'
	}
}
