package paper

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/cloudflare/circl/group"
	"github.com/cloudflare/circl/secretsharing"

	"github.com/bctl/bctl/internal/backup"
)

const (
	// MaxShares is the maximum number of shares.
	MaxShares = 50
	// setBytes is the length of the random number that the shares of one split have in common.
	setBytes = 4
	// scalarBytes is the length of a scalar of P-521. A secret has fewer bytes, so that it is one.
	scalarBytes    = 66
	maxSecretBytes = 64
)

var scalars = group.P521

// A Share is one of the shares of an identity.
type Share struct {
	Set       [setBytes]byte // the same for all shares of one split
	Threshold int            // how many shares recover the identity
	Index     int            // 1, 2, 3 …
	Trusted   Trusted
	kind      string
	value     [scalarBytes]byte
}

// String hides the share's value from messages and logs.
func (s Share) String() string { return fmt.Sprintf("share %d of set %X", s.Index, s.Set[:]) }

// Format hides the value for every verb.
func (s Share) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// Split makes n shares of an identity, any threshold of which recover it. Fewer reveal nothing
// about it. Errors wrap backup.ErrInvalid.
func Split(identity string, t Trusted, threshold, n int) ([]Share, error) {
	if threshold < 2 || n < threshold || n > MaxShares {
		return nil, fmt.Errorf("%d of %d shares: at least 2 must be needed, and there are at most %d: %w", threshold, n, MaxShares, backup.ErrInvalid)
	}
	kind, secret, err := cutIdentity(identity)
	if err != nil {
		return nil, err
	}
	if len(secret) > maxSecretBytes {
		return nil, fmt.Errorf("an identity of %d characters: %w", len(identity), backup.ErrInvalid)
	}
	number := scalars.NewScalar()
	if err := number.UnmarshalBinary(leftPadded(secret)); err != nil {
		return nil, err
	}
	common := Share{Threshold: threshold, Trusted: t, kind: kind}
	rand.Read(common.Set[:]) // never fails: crypto/rand ends the process instead
	shares := make([]Share, n)
	for i, made := range secretsharing.New(rand.Reader, uint(threshold-1), number).Share(uint(n)) {
		shares[i] = common
		shares[i].Index = i + 1
		value, err := made.Value.MarshalBinary()
		if err != nil || len(value) != scalarBytes {
			return nil, fmt.Errorf("share %d has %d bytes: %w", i+1, len(value), err)
		}
		copy(shares[i].value[:], value)
	}
	return shares, nil
}

// leftPadded returns a text as a number of scalarBytes, big endian.
func leftPadded(text string) []byte {
	return append(make([]byte, scalarBytes-len(text)), text...)
}

// Combine recovers the identity from shares of one split, of which there must be enough. Errors
// wrap backup.ErrInvalid.
func Combine(shares []Share) (identity string, t Trusted, err error) {
	if len(shares) == 0 {
		return "", t, fmt.Errorf("no shares: %w", backup.ErrInvalid)
	}
	first := shares[0]
	given := map[int]bool{}
	var points []secretsharing.Share
	for _, s := range shares {
		if s.Set != first.Set || s.Threshold != first.Threshold || s.kind != first.kind || s.Trusted != first.Trusted {
			return "", t, fmt.Errorf("%v and %v are not of the same split: %w", first, s, backup.ErrInvalid)
		}
		if given[s.Index] {
			continue
		}
		given[s.Index] = true
		p := secretsharing.Share{ID: scalars.NewScalar().SetUint64(uint64(s.Index)), Value: scalars.NewScalar()}
		if err := p.Value.UnmarshalBinary(s.value[:]); err != nil {
			return "", t, fmt.Errorf("%v is damaged: %w", s, backup.ErrInvalid)
		}
		points = append(points, p)
	}
	if len(points) < first.Threshold {
		return "", t, fmt.Errorf("%d different shares, and %d are needed: %w", len(points), first.Threshold, backup.ErrInvalid)
	}
	number, err := secretsharing.Recover(uint(first.Threshold-1), points[:first.Threshold])
	if err != nil {
		return "", t, fmt.Errorf("combine shares: %w: %w", err, backup.ErrInvalid)
	}
	secret, err := number.MarshalBinary()
	if err != nil {
		return "", t, fmt.Errorf("combine shares: %w: %w", err, backup.ErrInvalid)
	}
	identity = kinds[first.kind] + strings.TrimLeft(string(secret), "\x00")
	if _, _, err := cutIdentity(identity); err != nil {
		return "", t, fmt.Errorf("the shares do not belong together, or one of them is damaged: %w", backup.ErrInvalid)
	}
	return identity, first.Trusted, nil
}

// Encode returns the content of the share.
func (s *Share) Encode() string {
	fields := []string{
		fmt.Sprintf("%X", s.Set[:]), strconv.Itoa(s.Threshold), strconv.Itoa(s.Index), s.kind, strings.ToUpper(hex.EncodeToString(s.value[:])),
	}
	return sharePrefix + strings.Join(append(fields, s.Trusted.fields()...), "/")
}

// DecodeShare is the inverse of Encode. Errors wrap backup.ErrInvalid.
func DecodeShare(content string) (s Share, err error) {
	text, ok := strings.CutPrefix(content, sharePrefix)
	fields := strings.Split(text, "/")
	if !ok || len(fields) < 5 {
		return s, fmt.Errorf("this is no share, which begins with %q: %w", sharePrefix, backup.ErrInvalid)
	}
	var numbers [2]int
	for i := range numbers {
		if numbers[i], err = strconv.Atoi(fields[1+i]); err != nil || strconv.Itoa(numbers[i]) != fields[1+i] {
			return s, fmt.Errorf("share: number %d is damaged: %w", i+1, backup.ErrInvalid)
		}
	}
	s.Threshold, s.Index, s.kind = numbers[0], numbers[1], fields[3]
	setOK, valueOK := decodeUpper(s.Set[:], fields[0]), decodeUpper(s.value[:], fields[4])
	if !setOK || !valueOK || kinds[s.kind] == "" || s.Threshold < 2 || s.Threshold > MaxShares || s.Index < 1 || s.Index > MaxShares {
		return Share{}, fmt.Errorf("share: it is damaged: %w", backup.ErrInvalid)
	}
	s.Trusted, err = parseTrusted(fields[5:])
	return s, err
}

// decodeUpper fills dst with the bytes of hexadecimal digits in upper case.
func decodeUpper(dst []byte, text string) bool {
	raw, err := hex.DecodeString(text)
	return err == nil && len(raw) == len(dst) && strings.ToUpper(text) == text && copy(dst, raw) == len(dst)
}
