package keytext

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
)

// A record is a text with a line of each type.
type record struct {
	id    [4]byte
	when  time.Time
	name  string
	items []string
	blob  []byte
}

const (
	maxBytes = 4 << 10
	maxItems = 3
)

func (r *record) encode() []byte {
	w := NewWriter("test-record")
	w.Hex("id", r.id[:])
	w.Time("when", r.when)
	w.Text("name", r.name)
	for _, item := range r.items {
		w.Text("item", item)
	}
	w.Base64("blob", r.blob)
	w.Checksum()
	return w.Bytes()
}

func parse(data []byte) (r record, err error) {
	t := NewReader("record", "test-record", data, maxBytes)
	t.Hex("id", r.id[:])
	r.when = t.Time("when")
	r.name = t.Text("name")
	if r.items = t.Repeated("item", maxItems); len(r.items) > maxItems {
		t.Fail("too many items")
	}
	r.blob = t.Base64("blob")
	t.Checksum()
	return r, t.Err()
}

func example() record {
	return record{[4]byte{0xab, 1, 2, 3}, time.Date(2026, 11, 22, 3, 4, 5, 0, time.UTC), "a name", []string{"one", "two"}, []byte("blob")}
}

// The text is part of the format of key files and the repository object.
func TestText(t *testing.T) {
	const want = "test-record v1\nid ab010203\nwhen 2026-11-22T03:04:05Z\nname a name\nitem one\nitem two\nblob YmxvYg==\nchecksum 1a945156f632f335\n"
	r := example()
	if got := r.encode(); string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Each written text can be read, and is the only text of its content.
func TestEveryTextComesBack(t *testing.T) {
	anyText := rapid.StringMatching(`[ -~]{0,30}`)
	rapid.Check(t, func(t *rapid.T) {
		r := record{
			id:   [4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "id")),
			when: time.Unix(rapid.Int64Range(-60_000_000_000, 250_000_000_000).Draw(t, "when"), 0).UTC(),
			name: anyText.Draw(t, "name"), blob: rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "blob"),
		}
		r.items = rapid.SliceOfN(anyText, 0, maxItems).Draw(t, "items")
		text := r.encode()
		got, err := parse(text)
		if err != nil || !bytes.Equal(got.encode(), text) || !got.when.Equal(r.when) || got.name != r.name || !bytes.Equal(got.blob, r.blob) {
			t.Fatalf("%q: %+v, %v, want %+v", text, got, err, r)
		}
	})
}

func TestReaderRefuses(t *testing.T) {
	r := example()
	good := string(r.encode())
	edit := func(from, to string) string {
		edited := strings.Replace(good, from, to, 1)
		if edited == good {
			t.Fatalf("%q is not there", from)
		}
		body, _, _ := strings.Cut(edited, "checksum ")
		return body + "checksum " + checksum([]byte(body)) + "\n"
	}
	for what, test := range map[string]struct {
		text string
		want error
	}{
		"nothing":                  {"", backup.ErrInvalid},
		"another title":            {edit("test-record", "rest-record"), backup.ErrInvalid},
		"a later version":          {edit(" v1", " v2"), ErrVersion},
		"no line end":              {strings.TrimSuffix(good, "\n"), backup.ErrInvalid},
		"a line more":              {good + "x y\n", backup.ErrInvalid},
		"an empty line":            {good + "\n", backup.ErrInvalid},
		"an empty line between":    {edit("\nname", "\n\nname"), backup.ErrInvalid},
		"two spaces":               {edit("id ab", "id  ab"), backup.ErrInvalid},
		"capitals":                 {edit("id ab", "id AB"), backup.ErrInvalid},
		"too many digits":          {edit("id ab", "id abab"), backup.ErrInvalid},
		"no digits":                {edit("id ab010203", "id "), backup.ErrInvalid},
		"another line":             {edit("name", "nome"), backup.ErrInvalid},
		"lines exchanged":          {edit("name a name\nitem one", "item one\nname a name"), backup.ErrInvalid},
		"too many items":           {edit("item one", "item one\nitem 3\nitem 4"), backup.ErrInvalid},
		"carriage return":          {edit("YmxvYg==", "YmxvYg==\r"), backup.ErrInvalid},
		"carriage return within":   {edit("YmxvYg==", "Ymx\rvYg=="), backup.ErrInvalid},
		"no padding":               {edit("YmxvYg==", "YmxvYg"), backup.ErrInvalid},
		"bits after the last byte": {edit("YmxvYg==", "YmxvYh=="), backup.ErrInvalid},
		"an empty blob":            {edit("YmxvYg==", ""), backup.ErrInvalid},
		"the other alphabet":       {edit("YmxvYg==", "Ym-vYg=="), backup.ErrInvalid},
		"another time zone":        {edit("05Z", "05+00:00"), backup.ErrInvalid},
		"parts of a second":        {edit("05Z", "05.5Z"), backup.ErrInvalid},
		"no such day":              {edit("11-22", "11-31"), backup.ErrInvalid},
		"one digit of the hour":    {edit("T03", "T3"), backup.ErrInvalid},
		"another checksum":         {strings.Replace(good, "name a", "name b", 1), backup.ErrCorrupt},
		"too long":                 {good + strings.Repeat("x", maxBytes), backup.ErrInvalid},
	} {
		_, err := parse([]byte(test.text))
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", what, err, test.want)
		}
		if test.want == ErrVersion && !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v is not ErrInvalid", what, err)
		}
	}
	for i := range good {
		if _, err := parse([]byte(good[:i])); err == nil {
			t.Errorf("cut after %d bytes: no error", i)
		}
	}
}

// A value that contains a line feed is a mistake of the writer, and is detected.
func TestValueWithALineFeed(t *testing.T) {
	r := example()
	r.name = "a\nname b"
	if got, err := parse(r.encode()); err == nil {
		t.Errorf("%+v", got)
	}
}

// A text that is too long is refused before it is copied.
func TestReaderIsBounded(t *testing.T) {
	data := []byte("test-record v1\n" + strings.Repeat("x", 16<<20))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := parse(data)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<10 || !errors.Is(err, backup.ErrInvalid) {
		t.Errorf("%d bytes were allocated: %v", n, err)
	}
}

// An accepted text is the only one of its content.
func FuzzReader(f *testing.F) {
	r := example()
	f.Add(r.encode())
	f.Add([]byte("test-record v2\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parse(data)
		if err != nil {
			if !errors.Is(err, backup.ErrInvalid) && !errors.Is(err, backup.ErrCorrupt) {
				t.Error(err)
			}
			return
		}
		if again := r.encode(); !bytes.Equal(again, data) {
			t.Errorf("%q is another text of %q", data, again)
		}
	})
}
