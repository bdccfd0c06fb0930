package selection

import "fmt"

// A Glob is one pattern that a whole text must match, byte by byte: "*", "?" and "[…]" match no
// slash; "**" as a whole component matches any number of components; "\" escapes the next byte.
type Glob struct{ tokens []token }

// CompileGlob returns the Glob of a text.
func CompileGlob(text string) (Glob, error) {
	if len(text) > MaxPatternBytes {
		return Glob{}, fmt.Errorf("has more than %d bytes", MaxPatternBytes)
	}
	tokens, err := tokenize(text, true)
	return Glob{tokens}, err
}

// Matches reports whether the glob matches all of a text.
func (g Glob) Matches(text string) bool { return matchTokens(g.tokens, text) }
