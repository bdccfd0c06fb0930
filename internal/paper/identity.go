package paper

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

const (
	identityPrefix = "ID:"
	sharePrefix    = "SH:"
)

// A Trusted is a repository and its signer, as an identity file names them. The zero Trusted names
// none.
type Trusted struct {
	Repository backup.RepositoryID
	Signer     seal.Signer
}

// fields returns the fields of a content: none, or the repository and the signer.
func (t Trusted) fields() []string {
	if t == (Trusted{}) {
		return nil
	}
	return []string{strings.ToUpper(hex.EncodeToString(t.Repository[:])), strings.ToUpper(t.Signer.String())}
}

// parseTrusted is the inverse of fields.
func parseTrusted(fields []string) (t Trusted, err error) {
	if len(fields) == 0 {
		return t, nil
	}
	if len(fields) != 2 {
		return t, fmt.Errorf("%d fields: %w", len(fields), backup.ErrInvalid)
	}
	if t.Repository, err = backup.ParseRepositoryID(strings.ToLower(fields[0])); err != nil {
		return t, err
	}
	t.Signer, err = seal.ParseSigner(strings.ToLower(fields[1]))
	return t, err
}

// EncodeIdentity returns the content of an identity, a line of an identity file. Errors wrap
// backup.ErrInvalid: identities of plugins are useless without their hardware.
func EncodeIdentity(identity string, t Trusted) (string, error) {
	if _, _, err := cutIdentity(identity); err != nil {
		return "", err
	}
	return identityPrefix + strings.Join(append([]string{identity}, t.fields()...), "/"), nil
}

// DecodeIdentity is the inverse of EncodeIdentity.
func DecodeIdentity(content string) (identity string, t Trusted, err error) {
	text, ok := strings.CutPrefix(content, identityPrefix)
	if !ok {
		return "", t, fmt.Errorf("this is a share, or nothing of bctl; an identity begins with %q: %w", identityPrefix, backup.ErrInvalid)
	}
	fields := strings.Split(text, "/")
	if t, err = parseTrusted(fields[1:]); err != nil {
		return "", t, fmt.Errorf("paper identity: %w", err)
	}
	if _, _, err := cutIdentity(fields[0]); err != nil {
		return "", t, err
	}
	return fields[0], t, nil
}

// kinds of identities, by the beginning of their texts.
var kinds = map[string]string{"X": "AGE-SECRET-KEY-1", "PQ": "AGE-SECRET-KEY-PQ-1"}

// cutIdentity returns the kind of an identity and the rest of its text, after a check that age
// accepts it.
func cutIdentity(identity string) (kind, rest string, err error) {
	for kind, begins := range kinds {
		if rest, ok := strings.CutPrefix(identity, begins); ok {
			if _, err := seal.NewOpener([]byte(identity)); err != nil || !isContent(identity) || strings.ContainsAny(identity, "/:") {
				break
			}
			return kind, rest, nil
		}
	}
	return "", "", fmt.Errorf("not an identity of age (AGE-SECRET-KEY-…), or it has a mistake; those of plugins need their hardware: %w", backup.ErrInvalid)
}
