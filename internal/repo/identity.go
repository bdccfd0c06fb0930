package repo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

const maxIdentityBytes = 1 << 20

// DefaultIdentityPath is the path, below the user's configuration directory, at which Init puts a
// repository's identity, and which FindIdentity tries last.
func DefaultIdentityPath(id backup.RepositoryID) (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for the identity (--identity names a file): %w", err)
	}
	return filepath.Join(dir, "bctl", "identities", id.String()+".txt"), nil
}

// An Identity is a parsed identity file.
type Identity struct {
	Opener *seal.Opener
	Path   string
	// Signer is the signer that the file names for the repository; zero if it names none.
	Signer seal.Signer
	// Recipients are those of its identities; nil: the file does not name those of its plugins.
	Recipients []string
}

// Check returns an error that wraps backup.ErrWrongKey if the file and the object name different
// signers.
func (i *Identity) Check(o *Object) error {
	if i.Signer == (seal.Signer{}) {
		return nil
	}
	return o.CheckSigner(i.Signer, "identity file "+i.Path)
}

// An Asker reaches the person who uses an identity. The zero Asker reaches nobody.
type Asker struct {
	// Passphrase returns the passphrase of a protected identity file; nil: it is not known.
	Passphrase func(path string) (string, error)
	// Plugin is how plugins ask; nil: they cannot.
	Plugin *seal.UI
	// Opened has the texts of the protected files that were opened, by the content of the file: the
	// work of a passphrase takes a second. nil: each file is opened again.
	Opened *sync.Map
}

// FindIdentity reads the named identity file, or the one at the default path. If there is none, the
// error wraps backup.ErrWrongKey and lists the paths tried.
func FindIdentity(named string, id backup.RepositoryID, ask Asker) (*Identity, error) {
	path := named
	if path == "" {
		var err error
		if path, err = DefaultIdentityPath(id); err != nil {
			return nil, &keyError{err.Error()}
		}
	}
	data, err := ReadIdentityFile(path, ask)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missingIdentity(named, path, id)
	}
	if err != nil {
		return nil, err
	}
	i := &Identity{Path: path}
	if i.Opener, err = ask.opener(data); err != nil {
		return nil, unusable(fmt.Errorf("%s: %w", path, err))
	}
	if i.Signer, _, err = seal.SignerOf(data, id); err != nil {
		return nil, unusable(fmt.Errorf("%s: %w", path, err))
	}
	i.Recipients, _ = seal.RecipientsOf(data)
	return i, nil
}

// ReadIdentityFile returns the text of an identity file. If a passphrase protects it, ask must know
// the passphrase. Errors wrap backup.ErrWrongKey, except that fs.ErrNotExist is returned as it is.
func ReadIdentityFile(path string, ask Asker) ([]byte, error) {
	data, err := readKeyFile(path, maxIdentityBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, unusable(fmt.Errorf("identity: %w", err))
	}
	if !seal.IsProtected(data) {
		return data, nil
	}
	if ask.Passphrase == nil {
		return nil, &keyError{fmt.Sprintf("a passphrase protects identity file %s, and there is nobody to ask for it: set identity_passphrase_file (BCTL_IDENTITY_PASSPHRASE_FILE)", path)}
	}
	if ask.Opened != nil {
		if text, ok := ask.Opened.Load(string(data)); ok {
			return text.([]byte), nil
		}
	}
	passphrase, err := ask.Passphrase(path)
	if err != nil {
		return nil, err
	}
	text, err := seal.Unprotect(data, passphrase)
	if err != nil {
		return nil, unusable(fmt.Errorf("%s: %w", path, err))
	}
	if ask.Opened != nil {
		ask.Opened.Store(string(data), text)
	}
	return text, nil
}

func (a *Asker) opener(data []byte) (*seal.Opener, error) {
	if a.Plugin == nil {
		return seal.NewOpener(data)
	}
	return seal.NewOpenerWithUI(data, a.Plugin)
}

func missingIdentity(named, path string, id backup.RepositoryID) error {
	if named != "" {
		return &keyError{fmt.Sprintf("identity file %s does not exist", path)}
	}
	return &keyError{fmt.Sprintf("no identity for repository %v: --identity, BCTL_IDENTITY and the setting identity are not set, and %s does not exist", id, path)}
}

// publicKeyLine begins the comment with an identity's recipient, as age-keygen writes it.
const publicKeyLine = "# public key: "

// writeIdentity creates an identity file, which must not exist, and returns its recipient.
func writeIdentity(path string, id backup.RepositoryID, signer seal.Signer) (recipient string, err error) {
	identity, recipient, err := seal.GenerateIdentity()
	if err != nil {
		return "", err
	}
	text := identityText(identity, recipient, id, signer)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return recipient, writeNew(path, []byte(text))
}

func identityText(identity, recipient string, id backup.RepositoryID, signer seal.Signer) string {
	of := ""
	if id != (backup.RepositoryID{}) {
		of = fmt.Sprintf("# bctl repository %v\n# If you lose this file, you lose the backups. Anyone who has it can read them.\n%s\n", id, seal.SignerComment(id, signer))
	}
	return of + publicKeyLine + recipient + "\n" + identity + "\n"
}

// IdentityText returns the text of an identity file, as Init writes it. If id is zero, it names no
// repository.
func IdentityText(identity string, id backup.RepositoryID, signer seal.Signer) ([]byte, error) {
	recipients, err := seal.RecipientsOf([]byte(identity))
	if err != nil {
		return nil, err
	}
	return []byte(identityText(identity, recipients[0], id, signer)), nil
}

// readRecipient returns the recipient of an identity file, after a test that the identity opens
// what is sealed to it, and the signer that the file names for the repository; zero if it names
// none.
func readRecipient(path string, id backup.RepositoryID, ask Asker) (recipient string, signer seal.Signer, err error) {
	data, err := ReadIdentityFile(path, ask)
	if err != nil {
		return "", signer, err
	}
	if recipient, err = firstRecipient(data); err == nil {
		signer, _, err = seal.SignerOf(data, id)
	}
	if err == nil {
		err = checkPair(data, recipient, ask)
	}
	if err != nil {
		return "", signer, unusable(fmt.Errorf("identity file %s: %w", path, err))
	}
	return recipient, signer, nil
}

// firstRecipient returns the recipient that the last comment names, as age-keygen writes it, or
// else that of the first identity.
func firstRecipient(data []byte) (recipient string, err error) {
	for line := range strings.Lines(string(data)) {
		if r, ok := strings.CutPrefix(line, publicKeyLine); ok {
			recipient = strings.TrimSpace(r)
		}
	}
	if recipient != "" {
		return recipient, nil
	}
	all, err := seal.RecipientsOf(data)
	if err != nil {
		return "", err
	}
	return all[0], nil
}

// ReadRecipient returns the recipient of an identity file, after a test that the identity opens
// what is sealed to it.
func ReadRecipient(path string, ask Asker) (string, error) {
	recipient, _, err := readRecipient(path, backup.RepositoryID{}, ask)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &keyError{fmt.Sprintf("identity file %s does not exist", path)}
	}
	return recipient, err
}

func checkPair(identity []byte, recipient string, ask Asker) error {
	opener, err := ask.opener(identity)
	if err != nil {
		return err
	}
	sealer, err := seal.NewSealer([]string{recipient})
	if err != nil {
		return err
	}
	sealed, err := sealer.SealBlob([]byte("probe"))
	if err != nil {
		return err
	}
	if _, err := opener.OpenBlob(sealed); err != nil {
		return fmt.Errorf("its identity does not belong to its public key %s: %w", recipient, err)
	}
	return nil
}

// WriteNewFile writes a file of mode 0600 durably and atomically. It fails with fs.ErrExist if the
// file exists.
func WriteNewFile(path string, data []byte) error { return writeNew(path, data) }

func writeNew(path string, data []byte) error {
	return writeFile(path, data, os.Link)
}

// ReplaceFile is WriteNewFile for a file that may exist: it is then replaced.
func ReplaceFile(path string, data []byte) error {
	return writeFile(path, data, os.Rename)
}

// writeFile writes a file beside its place, and puts it there with put once its content is durable.
func writeFile(path string, data []byte, put func(from, to string) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".bctl-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := put(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// NewIdentityFile creates an identity file, which must not exist, for a repository, and returns its
// recipient.
func NewIdentityFile(path string, id backup.RepositoryID, signer seal.Signer) (recipient string, err error) {
	return writeIdentity(path, id, signer)
}
