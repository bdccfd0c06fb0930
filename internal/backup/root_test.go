package backup

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A file system's identifier may be any bytes, and is sent as text.
func TestEveryRootComesBack(t *testing.T) {
	anyText := rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 40), func(b []byte) string { return string(b) })
	rapid.Check(t, func(t *rapid.T) {
		r := Root{FileSystem: anyText.Draw(t, "type"), ID: anyText.Draw(t, "id"), Inode: rapid.Uint64().Draw(t, "inode")}
		r.Born = Time{Sec: rapid.Int64().Draw(t, "sec"), Nsec: rapid.Uint32Range(0, 999_999_999).Draw(t, "nsec")}
		text := r.String()
		if got, err := ParseRoot(text); err != nil || got != r {
			t.Fatalf("%q: %+v, %v, want %+v", text, got, err, r)
		}
		if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) {
			t.Fatalf("%q is not plain text", text)
		}
	})
}

func TestRootText(t *testing.T) {
	r := Root{FileSystem: "fuse.a b", ID: "x=1%\xff", Inode: 2, Born: Time{Sec: -3, Nsec: 7}}
	const want = "type=fuse.a%20b id=x=1%25%FF inode=2 born=-3.000000007"
	if got := r.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := (Root{}).String(); got != "" {
		t.Errorf("nothing is %q", got)
	}
	for _, bad := range []string{"color=red", "inode", "inode=-1", "inode=1x", "born=1", "born=1.5", "born=x.000000000", "type=%", "id=%zz", strings.Repeat("type=a ", 1000)} {
		if got, err := ParseRoot(bad); !errors.Is(err, ErrInvalid) || got != (Root{}) {
			t.Errorf("%.40q: %+v, %v", bad, got, err)
		}
	}
}

func FuzzParseRoot(f *testing.F) {
	f.Add("type=ext4 id=abc inode=2 born=1.000000002")
	f.Add("type=%20")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRoot(text)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if again, err := ParseRoot(r.String()); (err != nil || again != r) && len(text) < 1000 {
			t.Fatalf("%q is %+v, and then %+v, %v", text, r, again, err)
		}
	})
}
