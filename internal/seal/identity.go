package seal

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"filippo.io/age"
	"filippo.io/age/armor"
	"filippo.io/age/plugin"

	"github.com/bctl/bctl/internal/backup"
)

const (
	maxIdentityFileBytes = 1 << 20
	// maxScryptLog bounds the work that a hostile file can cause: 2^20 takes 1 GiB and a few
	// seconds. age itself writes 2^18.
	maxScryptLog = 20
)

// NewOpener parses the content of an age identity file: one identity per line, X25519,
// post-quantum, or that of a plugin ("AGE-PLUGIN-NAME-1…", with which the program age-plugin-NAME
// opens). Empty lines and lines that begin with '#' are skipped. Errors wrap backup.ErrInvalid and
// never contain any of the file's content.
func NewOpener(identityFile []byte) (*Opener, error) {
	return NewOpenerWithUI(identityFile, &plugin.ClientUI{})
}

// A UI is how a plugin reaches the person who uses it. The zero UI reaches nobody.
type UI = plugin.ClientUI

// TerminalUI returns a UI at the controlling terminal. tell prints a message.
func TerminalUI(tell func(format string, v ...any)) *UI { return plugin.NewTerminalUI(tell, tell) }

// NewOpenerWithUI is NewOpener for plugins that may ask the person at the terminal.
func NewOpenerWithUI(identityFile []byte, ui *UI) (*Opener, error) {
	if len(identityFile) > maxIdentityFileBytes {
		return nil, fmt.Errorf("identity file of %d bytes, at most %d are allowed: %w", len(identityFile), maxIdentityFileBytes, backup.ErrInvalid)
	}
	if IsProtected(identityFile) {
		return nil, fmt.Errorf("the identity file is protected by a passphrase: %w", backup.ErrInvalid)
	}
	o := &Opener{}
	for n, line := range identityLines(identityFile) {
		identity, err := parseIdentity(line, ui)
		if err != nil {
			return nil, fmt.Errorf("identity file: error at line %d: %w: %w", n, err, backup.ErrInvalid)
		}
		o.identities = append(o.identities, identity)
	}
	if len(o.identities) == 0 {
		return nil, fmt.Errorf("identity file: no secret keys found: %w", backup.ErrInvalid)
	}
	return o, nil
}

// identityLines yields the lines with identities, and their numbers.
func identityLines(file []byte) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		n := 0
		for line := range strings.Lines(string(file)) {
			n++
			line = strings.TrimRight(line, "\r\n")
			if line != "" && !strings.HasPrefix(line, "#") && !yield(n, line) {
				return
			}
		}
	}
}

func parseIdentity(line string, ui *plugin.ClientUI) (age.Identity, error) {
	if strings.HasPrefix(line, "AGE-PLUGIN-") {
		identity, err := plugin.NewIdentity(line, ui)
		if err != nil {
			return nil, errors.New("malformed identity of a plugin") // the cause may contain it
		}
		return identity, nil
	}
	parsed, err := age.ParseIdentities(strings.NewReader(line))
	if err != nil {
		return nil, errors.New("malformed secret key")
	}
	return parsed[0], nil
}

// Identities returns the lines of an identity file that are identities.
func Identities(identityFile []byte) (lines []string) {
	for _, line := range identityLines(identityFile) {
		lines = append(lines, line)
	}
	return lines
}

// recipientLines begin the comments that name a recipient: of age-keygen, and of plugins.
var recipientLines = []string{"public key: ", "recipient: "}

// RecipientsOf returns the recipients of the identities in a file. Those of plugins are taken from
// comments, as plugins write them. Errors wrap backup.ErrInvalid.
func RecipientsOf(identityFile []byte) ([]string, error) {
	var found []string
	hardware := 0
	for n, line := range identityLines(identityFile) {
		identity, err := parseIdentity(line, &plugin.ClientUI{})
		if err != nil {
			return nil, fmt.Errorf("identity file: error at line %d: %w: %w", n, err, backup.ErrInvalid)
		}
		switch i := identity.(type) {
		case *age.X25519Identity:
			found = append(found, i.Recipient().String())
		case *age.HybridIdentity:
			found = append(found, i.Recipient().String())
		default:
			hardware++
		}
	}
	if hardware > 0 {
		named := commentedRecipients(identityFile, found)
		if len(named) != hardware {
			return nil, fmt.Errorf("identity file: %d identities of plugins, but the comments name %d recipients: %w", hardware, len(named), backup.ErrInvalid)
		}
		found = append(found, named...)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("identity file: no secret keys found: %w", backup.ErrInvalid)
	}
	return found, nil
}

// commentedRecipients returns the recipients that comments name, without the known ones.
func commentedRecipients(file []byte, known []string) (found []string) {
	for line := range strings.Lines(string(file)) {
		comment, ok := strings.CutPrefix(line, "#")
		if !ok {
			continue
		}
		comment = strings.TrimSpace(comment)
		for _, word := range recipientLines {
			if len(comment) < len(word) || !strings.EqualFold(comment[:len(word)], word) {
				continue
			}
			r := strings.TrimSpace(comment[len(word):])
			if _, err := parseRecipient(r); err == nil && !slices.Contains(known, r) && !slices.Contains(found, r) {
				found = append(found, r)
			}
		}
	}
	return found
}

// ageIntro begins a binary age file.
const ageIntro = "age-encryption.org/v1\n"

// IsProtected reports whether an identity file is an age file itself, which a passphrase opens.
func IsProtected(identityFile []byte) bool {
	text := bytes.TrimLeft(identityFile, " \t\r\n")
	return bytes.HasPrefix(text, []byte(armor.Header)) || bytes.HasPrefix(identityFile, []byte(ageIntro))
}

// Unprotect opens an identity file that a passphrase protects, as age -p makes it. The error wraps
// backup.ErrWrongKey if the passphrase is wrong, and backup.ErrInvalid if the file is not of this
// form.
func Unprotect(identityFile []byte, passphrase string) ([]byte, error) {
	identity, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, fmt.Errorf("the passphrase is empty: %w", backup.ErrWrongKey)
	}
	identity.SetMaxWorkFactor(maxScryptLog)
	var file io.Reader = bytes.NewReader(identityFile)
	if !bytes.HasPrefix(identityFile, []byte(ageIntro)) {
		file = armor.NewReader(bufio.NewReader(file))
	}
	r, err := age.Decrypt(file, identity)
	if err != nil {
		var noMatch *age.NoIdentityMatchError
		if errors.As(err, &noMatch) && len(noMatch.Errors) == 1 && strings.Contains(noMatch.Errors[0].Error(), "incorrect passphrase") {
			return nil, fmt.Errorf("wrong passphrase: %w", backup.ErrWrongKey)
		}
		return nil, fmt.Errorf("not an identity file that a passphrase protects: %w: %w", err, backup.ErrInvalid)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxIdentityFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("the protected identity file is damaged: %w: %w", err, backup.ErrCorrupt)
	}
	if len(text) > maxIdentityFileBytes {
		return nil, fmt.Errorf("identity file of more than %d bytes: %w", maxIdentityFileBytes, backup.ErrInvalid)
	}
	return text, nil
}

// Protect is the inverse of Unprotect: it returns an armored age file.
func Protect(identityFile []byte, passphrase string) ([]byte, error) {
	recipient, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return nil, fmt.Errorf("the passphrase is empty: %w", backup.ErrInvalid)
	}
	var out bytes.Buffer
	text := armor.NewWriter(&out)
	w, err := age.Encrypt(text, recipient)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(identityFile); err != nil {
		return nil, err
	}
	if err := errors.Join(w.Close(), text.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
