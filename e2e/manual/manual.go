// Package manual reads the commands that a page of docs says to type, for tests that type them.
package manual

import (
	"fmt"
	"os"
	"strings"
)

// A Block is what a page says to type in one go: the text of a code block whose language is sh.
type Block struct {
	Section string // heading of the second level that it is below
	Kind    string // rest of the line that opens the block, after sh
	Text    string
}

// Blocks returns the blocks of a page in their order. A code block without a fence is an error,
// because no test would type it.
func Blocks(file string) (blocks []Block, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	section := ""
	var open *Block
	for number, line := range strings.Split(string(text), "\n") {
		opening := strings.HasPrefix(line, "```")
		language, kind, _ := strings.Cut(strings.TrimPrefix(line, "```"), " ")
		switch {
		case open != nil && line == "```":
			if open.Kind != "other" {
				blocks = append(blocks, *open)
			}
			open = nil
		case open != nil:
			open.Text += line + "\n"
		case opening && language == "sh":
			open = &Block{Section: section, Kind: kind}
		case opening:
			open = &Block{Kind: "other"}
		case strings.HasPrefix(line, "    ") && strings.TrimSpace(line) != "":
			return nil, fmt.Errorf("%s:%d: a block without a fence is run by nobody", file, number+1)
		default:
			if title, is := strings.CutPrefix(line, "## "); is {
				section = title
			}
		}
	}
	if open != nil {
		return nil, fmt.Errorf("%s: a block has no end", file)
	}
	return blocks, nil
}
