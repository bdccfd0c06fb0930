package paper

import (
	"bytes"
	"errors"
	"fmt"
	"image/png"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"pgregory.net/rapid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

const identity = "AGE-SECRET-KEY-1MM4V99CY3FNZLJ8QV0G9PZYJKH443QA9L3LTTKFFSDH5ST6FQV3QXDFXSC"

func trusted() Trusted {
	return Trusted{Repository: backup.RepositoryID{0xab, 15: 1}, Signer: seal.Signer{0xcd, 31: 2}}
}

// The lines are a format: papers last longer than versions of bctl.
func TestLinesNeverChange(t *testing.T) {
	content, err := EncodeIdentity(identity, trusted())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"01/09 ID:A GE-S ECRE T-KE Y-1M 8465",
		"02/09 M4V9 9CY3 FNZL J8QV 0G9P 306B",
		"03/09 ZYJK H443 QA9L 3LTT KFFS F18D",
		"04/09 DH5S T6FQ V3QX DFXS C/AB 6DBC",
		"05/09 0000 0000 0000 0000 0000 B745",
		"06/09 0000 0000 01/C D000 0000 894E",
		"07/09 0000 0000 0000 0000 0000 9256",
		"08/09 0000 0000 0000 0000 0000 E558",
		"09/09 0000 0000 0000 002 6183",
	}
	got := Lines(content)
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Errorf("line %q, want %q", got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d lines, want %d", len(got), len(want))
	}
}

// What is printed can be typed: in any case, with any spaces, and among other lines.
func TestWhatIsPrintedCanBeTyped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.StringMatching(`[0-9A-Z$%*+./:-]{1,200}`).Draw(t, "content")
		var typed strings.Builder
		for _, line := range rapid.Permutation(Lines(content)).Draw(t, "order") {
			label, chars, _ := strings.Cut(line, " ")
			if rapid.Bool().Draw(t, "lower") {
				chars = strings.ToLower(chars)
			}
			if rapid.Bool().Draw(t, "joined") {
				chars = strings.ReplaceAll(chars, " ", "")
			}
			fmt.Fprintf(&typed, "%s%s  %s \r\nnot a line of it\n", rapid.StringMatching(` {0,3}`).Draw(t, "indent"), label, chars)
		}
		got, err := Decode(typed.String())
		if err != nil || len(got) != 1 || got[0] != content {
			t.Fatalf("%q: %q, %v", content, got, err)
		}
	})
}

// Each mistake is found, and its line named, without showing what was typed.
func TestMistakesAreNamed(t *testing.T) {
	content, err := EncodeIdentity(identity, trusted())
	if err != nil {
		t.Fatal(err)
	}
	lines := Lines(content)
	edit := func(change func(lines []string) []string) string {
		return strings.Join(change(slices.Clone(lines)), "\n")
	}
	for what, test := range map[string]struct{ text, want string }{
		"a character":      {edit(func(l []string) []string { l[1] = strings.Replace(l[1], "9CY", "8CY", 1); return l }), "line 2 of 9 has a typing mistake"},
		"exchanged":        {edit(func(l []string) []string { l[1] = strings.Replace(l[1], "M4V9", "4MV9", 1); return l }), "line 2 of 9 has a typing mistake"},
		"the check":        {edit(func(l []string) []string { l[8] = strings.Replace(l[8], "6183", "0000", 1); return l }), "line 9 of 9 has a typing mistake"},
		"missing":          {edit(func(l []string) []string { return slices.Delete(l, 4, 5) }), "line 5 of 9 is missing"},
		"the last one":     {edit(func(l []string) []string { return l[:8] }), "line 9 of 9 is missing"},
		"numbers":          {edit(func(l []string) []string { l[1], l[2] = "02"+l[2][2:], "03"+l[1][2:]; return l }), "line 2 of 9 has a typing mistake"},
		"too short":        {edit(func(l []string) []string { l[3] = "04/09 AB"; return l }), "line 4 of 9 has"},
		"too long":         {edit(func(l []string) []string { l[3] += "ABCD"; return l }), "line 4 of 9 has 4 characters too many"},
		"two texts":        {edit(func(l []string) []string { return append(l[:4], Lines(content + "0123456789ABCDEFGHIJ")[5:]...) }), "line 6 of 10"},
		"nothing":          {"", "no line has the form"},
		"a text":           {"Dear colleague", "no line has the form"},
		"too much":         {strings.Repeat("x", MaxBytes+1), "at most"},
		"another alphabet": {edit(func(l []string) []string { l[1] = strings.Replace(l[1], "M4V9", "Ä4V9", 1); return l }), "line 2 of 9 has"},
	} {
		if what == "two texts" {
			test.want = "line 6"
		}
		got, err := Decode(test.text)
		if !errors.Is(err, backup.ErrInvalid) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "4V9") {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

func TestIdentity(t *testing.T) {
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{identity, hybrid.String()} {
		for _, of := range []Trusted{{}, trusted()} {
			content, err := EncodeIdentity(id, of)
			if err != nil {
				t.Fatal(err)
			}
			got, trust, err := DecodeIdentity(content)
			if err != nil || got != id || trust != of {
				t.Errorf("%q, %+v, %v", got, trust, err)
			}
		}
	}
	for _, bad := range []string{"", "ID:", "SH:" + identity, "ID:" + identity[:70], "ID:" + identity + "/00", "ID:" + identity + "/" + strings.Repeat("0", 32) + "/" + strings.Repeat("0", 64)} {
		if _, _, err := DecodeIdentity(bad); !errors.Is(err, backup.ErrInvalid) || strings.Contains(err.Error(), identity[20:60]) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, bad := range []string{"", "AGE-PLUGIN-X-1QQ", strings.ToLower(identity), identity + "\n" + identity} {
		if _, err := EncodeIdentity(bad, Trusted{}); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Any threshold of the shares recover the identity, and no fewer.
func TestShares(t *testing.T) {
	hybrid, err := age.GenerateHybridIdentity()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{identity, hybrid.String()} {
		shares, err := Split(id, trusted(), 3, 5)
		if err != nil {
			t.Fatal(err)
		}
		for i := range shares { // each as it is typed
			got, err := Decode(strings.Join(Lines(shares[i].Encode()), "\n"))
			if err != nil || len(got) != 1 {
				t.Fatal(err)
			}
			read, err := DecodeShare(got[0])
			if err != nil || read != shares[i] {
				t.Fatalf("share %d: %v, %v", i+1, read, err)
			}
		}
		for set := range 1 << len(shares) {
			var some []Share
			for i := range shares {
				if set>>i&1 == 1 {
					some = append(some, shares[i])
				}
			}
			slices.Reverse(some)
			got, trust, err := Combine(some)
			switch {
			case len(some) >= 3 && (err != nil || got != id || trust != trusted()):
				t.Errorf("%v: %v", some, err)
			case len(some) < 3 && !errors.Is(err, backup.ErrInvalid):
				t.Errorf("%v: no error", some)
			}
		}
	}
}

func TestSharesThatDoNotBelongTogether(t *testing.T) {
	one, err := Split(identity, Trusted{}, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	other, err := Split(identity, Trusted{}, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	damaged := one[1]
	damaged.value[40]++
	above := one[1]
	for i := range above.value {
		above.value[i] = 0xff // more than the order of the group
	}
	for what, shares := range map[string][]Share{
		"another split": {one[0], other[1]}, "the same twice": {one[0], one[0]}, "damaged": {one[0], damaged}, "no scalar": {one[0], above}, "none": nil,
	} {
		if got, _, err := Combine(shares); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	for _, n := range [][2]int{{1, 3}, {0, 0}, {4, 3}, {2, MaxShares + 1}} {
		if _, err := Split(identity, Trusted{}, n[0], n[1]); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%d of %d: %v", n[0], n[1], err)
		}
	}
	if text := fmt.Sprintf("%v %x %+v %#v %s", one[0], one[0], one[0], one, one[0]); strings.Contains(strings.ToUpper(text), fmt.Sprintf("%X", one[0].value[10:14])) {
		t.Error("a share is shown: " + text)
	}
}

// An older share is recovered by later versions.
func TestGoldenShares(t *testing.T) {
	shares := make([]Share, 2)
	for i, content := range goldenShares {
		var err error
		if shares[i], err = DecodeShare(content); err != nil {
			t.Fatal(err)
		}
	}
	if got, _, err := Combine(shares); err != nil || got != identity {
		t.Errorf("%q, %v", got, err)
	}
}

// goldenShares are shares 1 and 3 of a split of identity, of which 2 are needed.
var goldenShares = [2]string{
	"SH:8E74CC21/2/1/X/013EFD8F39C33A7F2ECEF7AA5C991A0D708BC0CFFF04F2CA0268456CAC05025F93066F1CD528EF219467FC0947EC2DCB0663095E08E5F3F02880713AE47E6A53ED93",
	"SH:8E74CC21/2/3/X/01BCF8ADAD49AF7CF1D27E52A358C775EB16A5BB647A67BB5AD841D3635A548A2288936791548BC28E65DBA72DE505CAC6D04FF9AA50E5A78F26319E45D42112BE2A",
}

func TestCode(t *testing.T) {
	share, err := Split(identity, trusted(), 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	code, err := NewCode(share[0].Encode())
	if err != nil {
		t.Fatal(err)
	}
	data, err := code.PNG()
	if err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := picture.Bounds().Dx(), (code.size+2*quietModules)*modulePixels; got != want {
		t.Errorf("%d pixels, want %d", got, want)
	}
	// The finder pattern at the corner, inside the margin.
	dark := func(x, y int) bool {
		r, _, _, _ := picture.At((x+quietModules)*modulePixels, (y+quietModules)*modulePixels).RGBA()
		return r == 0
	}
	for x, want := range []bool{true, true, true, true, true, true, true, false} {
		if dark(x, 0) != want {
			t.Errorf("module %d of the first row is dark: %v", x, dark(x, 0))
		}
	}
	if dark(-1, 0) || dark(0, -1) {
		t.Error("there is no margin")
	}
	lines := strings.Split(strings.TrimSuffix(code.Text(false), "\n"), "\n")
	if len(lines) != (code.size+2*quietModules+1)/2 || len([]rune(lines[0])) != code.size+2*quietModules {
		t.Errorf("%d lines of %d characters", len(lines), len([]rune(lines[0])))
	}
}

// Whatever is typed, Decode returns contents or an error, and what it returns can be printed again.
func FuzzDecode(f *testing.F) {
	content, err := EncodeIdentity(identity, trusted())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(strings.Join(Lines(content), "\n"))
	f.Add(content)
	f.Add("01/01 AB 1234")
	f.Fuzz(func(t *testing.T, text string) {
		contents, err := Decode(text)
		if err != nil {
			if !errors.Is(err, backup.ErrInvalid) {
				t.Error(err)
			}
			return
		}
		for _, c := range contents {
			again, err := Decode(strings.Join(Lines(c), "\n"))
			if err != nil || len(again) != 1 || again[0] != c {
				t.Errorf("%q comes back as %q, %v", c, again, err)
			}
			_, _, _ = DecodeIdentity(c)
		}
	})
}

// An accepted share is the only text of its content.
func FuzzShare(f *testing.F) {
	shares, err := Split(identity, trusted(), 2, 2)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(shares[0].Encode())
	f.Fuzz(func(t *testing.T, content string) {
		s, err := DecodeShare(content)
		if err != nil {
			return
		}
		if again := s.Encode(); again != content {
			t.Errorf("%q is another text of %q", content, again)
		}
		_, _, _ = Combine([]Share{s, s})
	})
}
