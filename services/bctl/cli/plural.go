package cli

import (
	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
)

// counted is "1 file", "1,234 files", "2 directories".
func counted[N int | int64](n N, what string) string {
	return humanize.Comma(int64(n)) + " " + ofSome(n, what)
}

// ofSome is the word alone: "file" for one.
func ofSome[N int | int64](n N, what string) string { return english.PluralWord(int(n), what, "") }
