package dump

import (
	"archive/zip"
	"bytes"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A time is in the archive, or counted as left out, and never another one.
func TestTimesInZip(t *testing.T) {
	times := []string{
		"0001-01-01T00:00:00Z", "1901-02-03T04:05:06Z", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "1979-12-31T23:59:59Z", "1980-01-01T00:00:00Z",
		"2026-11-28T19:30:01Z", "2038-01-19T03:14:07Z", "2038-01-19T03:14:08Z", "2107-12-31T23:59:58Z", "2108-01-01T00:00:00Z", "2400-02-03T04:05:06Z",
	}
	lost := map[string]bool{times[0]: true, times[1]: true, times[2]: true, times[10]: true, times[11]: true}
	var out bytes.Buffer
	z := newZip(&out)
	for _, text := range times {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		refused, err := z.add(text, &backup.Entry{Kind: backup.File, Mtime: backup.TimeOf(at)}, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := len(refused) > 0; got != lost[text] {
			t.Errorf("%s: left out: %v, want %v", text, got, lost[text])
		}
	}
	if err := z.close(); err != nil {
		t.Fatal(err)
	}
	r, err := zip.NewReader(bytes.NewReader(out.Bytes()), int64(out.Len()))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.File {
		if got := f.Modified.UTC().Format(time.RFC3339); !lost[f.Name] && got != f.Name {
			t.Errorf("%s is %s", f.Name, got)
		}
		if year := f.Modified.Year(); year < 1980 && f.Modified.Unix() < 0 || year > 2107 {
			t.Errorf("%s is in the year %d", f.Name, year)
		}
	}
}
