package seal

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

func TestSignatures(t *testing.T) {
	key, other := NewSigningKey(), NewSigningKey()
	repository, name, data := backup.RepositoryID{1}, "commits/a", []byte("what is said")
	signature := key.Sign(repository, name, data)
	if err := key.Signer().Verify(repository, name, data, signature); err != nil || len(signature) != SignatureBytes {
		t.Fatalf("%d bytes: %v", len(signature), err)
	}
	flipped := bytes.Clone(signature)
	flipped[40] ^= 1
	for what, test := range map[string]struct {
		signer     Signer
		repository backup.RepositoryID
		name       string
		data       []byte
		signature  []byte
	}{
		"another signer":          {other.Signer(), repository, name, data, signature},
		"no signer":               {Signer{}, repository, name, data, signature},
		"another repository":      {key.Signer(), backup.RepositoryID{2}, name, data, signature},
		"another name":            {key.Signer(), repository, "commits/b", data, signature},
		"a shorter name":          {key.Signer(), repository, "commits/", append([]byte("a"), data...), signature},
		"other data":              {key.Signer(), repository, name, []byte("what is saiD"), signature},
		"a byte more":             {key.Signer(), repository, name, append(bytes.Clone(data), 0), signature},
		"a byte less":             {key.Signer(), repository, name, data[1:], signature},
		"a changed signature":     {key.Signer(), repository, name, data, flipped},
		"no signature":            {key.Signer(), repository, name, data, nil},
		"a signature cut short":   {key.Signer(), repository, name, data, signature[:63]},
		"a signature and a byte":  {key.Signer(), repository, name, data, append(bytes.Clone(signature), 0)},
		"the signature of others": {key.Signer(), repository, name, data, other.Sign(repository, name, data)},
	} {
		if err := test.signer.Verify(test.repository, test.name, test.data, test.signature); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", what, err)
		}
	}
}

func TestCommitterKeyText(t *testing.T) {
	key := CommitterKey{Repository: backup.NewRepositoryID(), Signing: NewSigningKey()}
	text, err := key.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseCommitterKey(text)
	if err != nil || got.Repository != key.Repository || got.Signing.Signer() != key.Signing.Signer() {
		t.Errorf("parsed %+v, %v", got, err)
	}
	for what, key := range map[string]CommitterKey{"no key": {Repository: backup.RepositoryID{1}}, "no repository": {Signing: NewSigningKey()}} {
		if _, err := key.MarshalText(); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestCommitterKeyIsHidden(t *testing.T) {
	key := CommitterKey{Repository: backup.RepositoryID{1}, Signing: NewSigningKey()}
	seed := key.Signing.private.Seed()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%q", "%d", "%o"} {
		for _, value := range []any{key, key.Signing, &key, WorkerKey{Dedup: DedupKey(seed)}, DedupKey(seed)} {
			text := strings.ToLower(fmt.Sprintf(verb, value))
			for _, secret := range []string{fmt.Sprintf("%x", seed), fmt.Sprintf("%d", seed[:4])[1:8], fmt.Sprintf("%o", seed[:4])[1:8]} {
				if strings.Contains(text, secret) {
					t.Errorf("%s of a %T shows the key: %s", verb, value, text)
				}
			}
		}
	}
}

func TestParseCommitterKeyRefusesEdits(t *testing.T) {
	good, err := CommitterKey{Repository: backup.RepositoryID{1}, Signing: goldenSigning}.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	other, err := CommitterKey{Repository: backup.RepositoryID{1}, Signing: NewSigningKey()}.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	line := func(text []byte, word string) string {
		_, rest, _ := strings.Cut(string(text), word+" ")
		value, _, _ := strings.Cut(rest, "\n")
		return word + " " + value + "\n"
	}
	edit := func(from, to string) string {
		edited := strings.Replace(string(good), from, to, 1)
		if edited == string(good) {
			t.Fatalf("%q is not there", from)
		}
		return edited
	}
	seed, signer := line(good, "seed"), line(good, "signer")
	for what, test := range map[string]struct {
		text string
		want error
	}{
		"empty":                     {"", backup.ErrInvalid},
		"a worker key":              {edit("bctl-committer-key", "bctl-worker-key"), backup.ErrInvalid},
		"another version":           {resum(edit(" v1\n", " v2\n")), backup.ErrInvalid},
		"another seed":              {edit(seed, line(other, "seed")), backup.ErrCorrupt},
		"another seed, summed":      {resum(edit(seed, line(other, "seed"))), backup.ErrInvalid},
		"another signer, summed":    {resum(edit(signer, line(other, "signer"))), backup.ErrInvalid},
		"another's seed and signer": {resum(edit(seed+signer, line(other, "seed")+line(other, "signer"))), nil},
		"a zero repository":         {resum(edit("repository 01", "repository 00")), backup.ErrInvalid},
		"a zero seed":               {resum(edit(seed, "seed "+strings.Repeat("0", 64)+"\n")), backup.ErrInvalid},
		"lines exchanged":           {resum(edit(seed+signer, signer+seed)), backup.ErrInvalid},
		"no signer":                 {resum(edit(signer, "")), backup.ErrInvalid},
		"a line more":               {string(good) + "\n", backup.ErrInvalid},
		"CRLF":                      {strings.ReplaceAll(string(good), "\n", "\r\n"), backup.ErrInvalid},
		"too long":                  {string(good) + strings.Repeat(" ", MaxKeyFileBytes), backup.ErrInvalid},
	} {
		k, err := ParseCommitterKey([]byte(test.text))
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", what, err, test.want)
		}
		if err != nil && (k.Repository != backup.RepositoryID{} || k.Signing.private != nil) {
			t.Errorf("%s: a key comes with the error", what)
		}
		if err != nil && strings.Contains(err.Error(), seed[5:20]) {
			t.Errorf("%s: the error shows the key: %v", what, err)
		}
	}
	for i := range good {
		if _, err := ParseCommitterKey(good[:i]); err == nil {
			t.Errorf("truncated to %d bytes: no error", i)
		}
	}
}

func TestSignerOf(t *testing.T) {
	mine, theirs := backup.RepositoryID{1}, backup.RepositoryID{2}
	signer, other := NewSigningKey().Signer(), NewSigningKey().Signer()
	alice := newPerson(t)
	for what, test := range map[string]struct {
		file string
		want Signer
		err  error
	}{
		"none":                 {alice.identity + "\n", Signer{}, nil},
		"one":                  {SignerComment(mine, signer) + "\n" + alice.identity, signer, nil},
		"at the end, CRLF":     {alice.identity + "\r\n" + SignerComment(mine, signer) + "\r\n", signer, nil},
		"without a line end":   {alice.identity + "\n" + SignerComment(mine, signer), signer, nil},
		"another repository's": {SignerComment(theirs, other), Signer{}, nil},
		"two repositories":     {SignerComment(theirs, other) + "\n" + SignerComment(mine, signer), signer, nil},
		"twice the same":       {SignerComment(mine, signer) + "\n" + SignerComment(mine, signer), signer, nil},
		"two signers":          {SignerComment(mine, signer) + "\n" + SignerComment(mine, other), Signer{}, backup.ErrInvalid},
		"cut short":            {SignerComment(mine, signer)[:80], Signer{}, backup.ErrInvalid},
		"no signer":            {signerLine + mine.String(), Signer{}, backup.ErrInvalid},
		"no repository":        {signerLine, Signer{}, backup.ErrInvalid},
		"a zero signer":        {SignerComment(mine, Signer{}), Signer{}, backup.ErrInvalid},
		"capitals":             {strings.Replace(SignerComment(mine, signer), signer.String(), strings.ToUpper(signer.String()), 1), Signer{}, backup.ErrInvalid},
		"a word more":          {SignerComment(mine, signer) + " x", Signer{}, backup.ErrInvalid},
	} {
		got, ok, err := SignerOf([]byte(test.file), mine)
		if got != test.want || ok != (test.want != Signer{}) || !errors.Is(err, test.err) {
			t.Errorf("%s: %v, %v, %v", what, got, ok, err)
		}
	}
	// age treats the line as a comment.
	if _, err := NewOpener([]byte(SignerComment(mine, signer) + "\n" + alice.identity + "\n")); err != nil {
		t.Error(err)
	}
}
