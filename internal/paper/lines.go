package paper

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

const (
	lineChars  = 20
	groupChars = 4
	checkChars = 4
	maxLines   = 99
	// MaxBytes is the maximum length of a text that Decode reads.
	MaxBytes = 64 << 10
)

// alphabet are the characters of a content: those of a QR code's alphanumeric mode, without the
// space.
const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ$%*+-./:"

func isContent(text string) bool {
	return text != "" && len(text) <= maxLines*lineChars && strings.Trim(text, alphabet) == ""
}

// Lines returns the lines of a content: "03/12 ABCD EFGH IJKL MNOP QRST 1F2E". The number and the
// count come first, then the characters in groups, then the check.
func Lines(content string) []string {
	count := (len(content) + lineChars - 1) / lineChars
	lines := make([]string, 0, count)
	for n := 1; content != ""; n++ {
		chars := content[:min(lineChars, len(content))]
		content = content[len(chars):]
		line := fmt.Sprintf("%02d/%02d", n, count)
		check := checkOf(n, count, chars)
		for chars != "" {
			group := chars[:min(groupChars, len(chars))]
			line, chars = line+" "+group, chars[len(group):]
		}
		lines = append(lines, line+" "+check)
	}
	return lines
}

// checkOf returns the first 2 bytes of a SHA-256 over the number of a line and its characters.
func checkOf(n, count int, chars string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "bctl paper v1 %02d/%02d %s", n, count, chars))
	return fmt.Sprintf("%X", sum[:checkChars/2])
}

// numbered matches a typed line: its number, the count of lines, and the rest.
var numbered = regexp.MustCompile(`^\s*(\d{1,2})\s*/\s*(\d{1,2})[:.]?\s+(.*)$`)

// Decode returns the contents in a text that was typed or scanned: each is a set of lines, or the
// content itself in one line, as a QR code has it. Other lines are ignored. Case and spaces do not
// matter. Errors wrap backup.ErrInvalid and name the line with the mistake, but never show it.
func Decode(text string) (contents []string, err error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("a text of %d bytes, at most %d are allowed: %w", len(text), MaxBytes, backup.ErrInvalid)
	}
	var b block
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if content, ok := scanned(line); ok {
			contents = append(contents, content)
			continue
		}
		parts := numbered.FindStringSubmatch(line)
		if parts == nil {
			continue
		}
		n, _ := strconv.Atoi(parts[1])
		count, _ := strconv.Atoi(parts[2])
		if n == 1 && len(b.lines) > 0 && b.has(1) {
			content, err := b.content()
			if err != nil {
				return nil, err
			}
			contents, b = append(contents, content), block{}
		}
		if err := b.add(n, count, parts[3]); err != nil {
			return nil, err
		}
	}
	if len(b.lines) > 0 {
		content, err := b.content()
		if err != nil {
			return nil, err
		}
		contents = append(contents, content)
	}
	if len(contents) == 0 {
		return nil, fmt.Errorf("no line has the form %q: %w", "01/12 ABCD …", backup.ErrInvalid)
	}
	return contents, nil
}

// scanned returns the content of a line that has all of it.
func scanned(line string) (string, bool) {
	content := squeeze(line)
	whole := strings.HasPrefix(content, identityPrefix) || strings.HasPrefix(content, sharePrefix)
	return content, whole && isContent(content)
}

func squeeze(text string) string { return strings.ToUpper(strings.Join(strings.Fields(text), "")) }

// A block is a set of lines of one content.
type block struct {
	count int
	lines map[int]string
}

func (b *block) has(n int) bool { _, ok := b.lines[n]; return ok }

// add adds a line that was typed, after its check.
func (b *block) add(n, count int, typed string) error {
	chars := squeeze(typed)
	if len(chars) <= checkChars || len(chars) > lineChars+checkChars {
		return fmt.Errorf("line %d of %d has %d characters too many, or some are missing: %w", n, count, max(0, len(chars)-lineChars-checkChars), backup.ErrInvalid)
	}
	chars, check := chars[:len(chars)-checkChars], chars[len(chars)-checkChars:]
	switch {
	case checkOf(n, count, chars) != check || !isContent(chars):
		return fmt.Errorf("line %d of %d has a typing mistake: %w", n, count, backup.ErrInvalid)
	case b.count != 0 && count != b.count:
		return fmt.Errorf("line %d is the one of a text of %d lines, and others are of one of %d: %w", n, count, b.count, backup.ErrInvalid)
	case n < 1 || n > count || n < count && len(chars) != lineChars:
		return fmt.Errorf("line %d of %d cannot be: %w", n, count, backup.ErrInvalid)
	case b.has(n) && b.lines[n] != chars:
		return fmt.Errorf("line %d of %d is there twice, with different characters: %w", n, count, backup.ErrInvalid)
	}
	if b.lines == nil {
		b.lines = map[int]string{}
	}
	b.count, b.lines[n] = count, chars
	return nil
}

// content returns the content of a complete block.
func (b *block) content() (string, error) {
	var content strings.Builder
	for n := 1; n <= b.count; n++ {
		if !b.has(n) {
			return "", fmt.Errorf("line %d of %d is missing: %w", n, b.count, backup.ErrInvalid)
		}
		content.WriteString(b.lines[n])
	}
	return content.String(), nil
}
