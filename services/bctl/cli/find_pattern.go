package cli

import (
	"errors"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/selection"
)

// A findPattern is a pattern of bctl find.
type findPattern struct {
	glob   selection.Glob
	regex  *regexp.Regexp // nil: glob
	fold   bool
	inTree bool // it is compared with the path below the shard's root
	whole  bool // it is compared with the path on the filer
}

func newFindPattern(text string, regex, ignoreCase bool) (p findPattern, err error) {
	if text == "" {
		return p, errors.New("is empty")
	}
	p.whole = strings.HasPrefix(text, "/") || regex && strings.HasPrefix(text, "^/")
	p.inTree = !p.whole && strings.Contains(text, "/")
	if regex {
		// A name may contain newlines.
		flags := "(?s)"
		if ignoreCase {
			flags = "(?is)"
		}
		if p.regex, err = regexp.Compile(flags + text); err != nil {
			err = errors.New("is not a regular expression: " + strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		}
		return p, err
	}
	if strings.HasSuffix(text, "/") {
		return p, errors.New(`ends in a "/": to find directories, leave it out and use --type directory`)
	}
	if p.fold = ignoreCase; p.fold {
		text = foldCase(text)
	}
	p.glob, err = selection.CompileGlob(text)
	return p, err
}

// matches reports whether an entry matches, of a shard with this root on its filer.
func (p *findPattern) matches(root, dir, name string) bool {
	subject := name
	switch {
	case p.whole:
		subject = strings.TrimSuffix(root, "/") + "/" + backup.Join(dir, name)
	case p.inTree:
		subject = backup.Join(dir, name)
	}
	if p.regex != nil {
		return p.regex.MatchString(subject)
	}
	if p.fold {
		subject = foldCase(subject)
	}
	return p.glob.Matches(subject)
}

// foldCase returns a text in lower case. Bytes that are not UTF-8 stay as they are.
func foldCase(text string) string {
	var folded strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if r == utf8.RuneError && size == 1 {
			folded.WriteByte(text[0])
		} else {
			folded.WriteRune(unicode.ToLower(r))
		}
		text = text[size:]
	}
	return folded.String()
}
