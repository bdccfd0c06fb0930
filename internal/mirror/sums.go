package mirror

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// A note is what the mirror has noted about one of its objects.
type note struct {
	sizeBytes int64
	sum       sum
	copied    int64 // Unix seconds; never 0
	locked    int64 // until; Unix seconds; 0: not locked
}

const (
	sumsTitle = "bctl-mirror-sums v1"
	// sumsLines is how many notes an object has at most, and maxSumsBytes how long it is at most.
	sumsLines    = 10_000
	maxSumsBytes = sumsLines*(store.MaxNameBytes+4*20+2*sha256.Size) + 1024
)

// newSumsName returns a name for an object with notes.
func newSumsName(now time.Time) string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	return fmt.Sprintf("%s%016x-%x", store.SumsPrefix, now.UnixMilli(), id)
}

// appendNote appends the line of a note.
func appendNote(dst []byte, name string, n *note) []byte {
	return fmt.Appendf(dst, "%s %d %x %d %d\n", name, n.sizeBytes, n.sum, n.copied, n.locked)
}

// encodeSums returns the object with the given lines.
func encodeSums(lines []byte) []byte {
	text := append([]byte(sumsTitle+"\n"), lines...)
	return fmt.Appendf(text, "end %x\n", sha256.Sum256(text))
}

// parseSums calls do with each note in untrusted bytes. Errors wrap backup.ErrCorrupt; do is then
// not called.
func parseSums(data []byte, do func(name string, n note)) error {
	wrong := func(what string) error { return fmt.Errorf("notes of a mirror: %s: %w", what, backup.ErrCorrupt) }
	end := len(data) - len("end \n") - 2*sha256.Size
	if len(data) > maxSumsBytes || end < len(sumsTitle)+1 {
		return wrong(fmt.Sprintf("%d bytes", len(data)))
	}
	if string(data[end:]) != fmt.Sprintf("end %x\n", sha256.Sum256(data[:end])) {
		return wrong("checksum does not match")
	}
	lines, is := strings.CutPrefix(string(data[:end]), sumsTitle+"\n")
	if !is {
		return wrong("not of version 1")
	}
	type named struct {
		name string
		note
	}
	var all []named
	for line := range strings.Lines(lines) {
		name, n, ok := parseNote(strings.TrimSuffix(line, "\n"))
		if !ok || len(all) == sumsLines {
			return wrong(fmt.Sprintf("line %d", len(all)+2))
		}
		all = append(all, named{name, n})
	}
	for _, n := range all {
		do(n.name, n.note)
	}
	return nil
}

func parseNote(line string) (name string, n note, ok bool) {
	fields := strings.Split(line, " ")
	if len(fields) != 5 || !isOurs(fields[0]) || len(fields[2]) != hex.EncodedLen(len(n.sum)) {
		return "", n, false
	}
	_, err := hex.Decode(n.sum[:], []byte(fields[2]))
	for i, to := range map[int]*int64{1: &n.sizeBytes, 3: &n.copied, 4: &n.locked} {
		v, wrong := strconv.ParseInt(fields[i], 10, 64)
		if wrong != nil || v < 0 || v > 1<<40 {
			return "", n, false
		}
		*to = v
	}
	return fields[0], n, err == nil && n.copied > 0
}
