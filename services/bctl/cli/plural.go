package cli

import (
	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
)

// counted returns "1 file", "1,234 files", "2 directories".
func counted[N int | int64](n N, what string) string {
	return humanize.Comma(int64(n)) + " " + ofSome(n, what)
}

// countedAre is counted, with the verb: "1 file is".
func countedAre[N int | int64](n N, what string) string {
	if n == 1 {
		return counted(n, what) + " is"
	}
	return counted(n, what) + " are"
}

// ofSome returns only the word, in the form for n: "file" for 1.
func ofSome[N int | int64](n N, what string) string { return english.PluralWord(int(n), what, "") }

// itOrThem returns the pronoun for n things.
func itOrThem(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}
