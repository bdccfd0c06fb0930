package retention

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/bctl/bctl/internal/backup"
)

// ErrKeepsNothing is the error of rules that keep no snapshot.
var ErrKeepsNothing = fmt.Errorf("no rule keeps any snapshot: set at least one, such as --keep-daily 7: %w", backup.ErrInvalid)

// Check checks the values of rules. It accepts an empty set. Errors are of the type
// *backup.SettingError, with the names of the fleet file.
func Check(rules backup.Retention) error {
	for _, c := range rules.Counts() {
		if c.Count < 0 && c.Count != backup.Unlimited {
			return wrong(c.Name, "%d is not a number of 0 or more, or unlimited", int(c.Count))
		}
	}
	for _, p := range rules.Periods() {
		if !p.Valid() {
			return wrong(p.Name, "%+v is negative, or too long", p.Period)
		}
	}
	if err := checkTags(rules.Tags); err != nil {
		return err
	}
	switch rules.Style {
	case backup.StyleRestic:
		return nil
	case backup.StylePBS:
	default:
		return wrong("style", "%q is not restic or pbs", string(rules.Style))
	}
	for _, p := range rules.Periods() {
		if !p.IsZero() {
			return wrong(p.Name, "the style pbs has no periods: omit them, or use the style restic")
		}
	}
	if len(rules.Tags) > 0 {
		return wrong("tags", "the style pbs has no tags: omit them, or use the style restic")
	}
	return nil
}

// Upper limits for the number of lists of tags, and for the bytes of one list.
const (
	maxTagLists = 64
	maxTagBytes = 1024
)

func checkTags(lists [][]string) error {
	if len(lists) > maxTagLists {
		return wrong("tags", "%d lists are more than %d", len(lists), maxTagLists)
	}
	for n, list := range lists {
		setting := "tags/" + strconv.Itoa(n)
		text := strings.Join(list, ",")
		if len(text) > maxTagBytes || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return wrong(setting, "%q has more than %d bytes, is not UTF-8, or contains a NUL", text[:min(len(text), 80)], maxTagBytes)
		}
		// Tags that have no text form could be set, but neither shown nor set again.
		if parsed, err := backup.ParseTags(text); err != nil || !slices.Equal(parsed, list) {
			return wrong(setting, "%q has an empty tag, or one with a comma or with spaces around it", list)
		}
	}
	return nil
}

func wrong(setting, format string, args ...any) error {
	return &backup.SettingError{
		Setting: "keep/" + setting, Err: fmt.Errorf("keep: %s: "+format+": %w", append(append([]any{setting}, args...), backup.ErrInvalid)...),
	}
}
