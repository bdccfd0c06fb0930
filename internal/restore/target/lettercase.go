//go:build linux

package target

import (
	"errors"
	"io/fs"
	"strings"
	"unicode"
	"unicode/utf8"
)

// SwapCase returns name with the case of its letters swapped. It returns name itself if that has no
// letters.
func SwapCase(name string) string {
	swap := func(r rune) rune {
		if unicode.IsUpper(r) {
			return unicode.ToLower(r)
		}
		return unicode.ToUpper(r)
	}
	if utf8.ValidString(name) {
		return strings.Map(swap, name)
	}
	b := []byte(name) // strings.Map would replace bytes that are not UTF-8
	for i, c := range b {
		if c < utf8.RuneSelf {
			b[i] = byte(swap(rune(c)))
		}
	}
	return string(b)
}

// IgnoresCase reports whether the directory ignores the case of names: a lookup of name, which must
// exist, succeeds with its case swapped although the directory does not list that spelling.
func (d *Dir) IgnoresCase(name string) (bool, error) {
	swapped := SwapCase(name)
	if swapped == name {
		return false, nil
	}
	have, err := d.Stat(name)
	if err != nil {
		return false, err
	}
	other, err := d.Stat(swapped)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || have.Inode != other.Inode || have.Device != other.Device {
		return false, err
	}
	// The other spelling is listed if it is a hard link, or if name is the one that is not listed.
	listed, err := d.HasName(func(n string) bool { return n == swapped })
	if err != nil || !listed {
		return !listed, err
	}
	listed, err = d.HasName(func(n string) bool { return n == name })
	return !listed, err
}
