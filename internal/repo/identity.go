package repo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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
}

// Check returns an error that wraps backup.ErrWrongKey if the file and the object name different
// signers.
func (i *Identity) Check(o *Object) error {
	if i.Signer == (seal.Signer{}) {
		return nil
	}
	return o.CheckSigner(i.Signer, "identity file "+i.Path)
}

// FindIdentity reads the named identity file, or the one at the default path. If there is none, the
// error wraps backup.ErrWrongKey and lists the paths tried.
func FindIdentity(named string, id backup.RepositoryID) (*Identity, error) {
	path := named
	if path == "" {
		var err error
		if path, err = DefaultIdentityPath(id); err != nil {
			return nil, &keyError{err.Error()}
		}
	}
	data, err := readKeyFile(path, maxIdentityBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missingIdentity(named, path, id)
	}
	if err != nil {
		return nil, unusable(fmt.Errorf("identity: %w", err))
	}
	i := &Identity{Path: path}
	if i.Opener, err = seal.NewOpener(data); err != nil {
		return nil, unusable(fmt.Errorf("%s: %w", path, err))
	}
	if i.Signer, _, err = seal.SignerOf(data, id); err != nil {
		return nil, unusable(fmt.Errorf("%s: %w", path, err))
	}
	return i, nil
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
	text := fmt.Sprintf("# bctl repository %v\n# If you lose this file, you lose the backups. Anyone who has it can read them.\n%s\n%s%s\n%s\n",
		id, seal.SignerComment(id, signer), publicKeyLine, recipient, identity)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return recipient, writeNew(path, []byte(text))
}

// readRecipient returns the recipient of an identity file, after a test that the identity opens
// what is sealed to it, and the signer that the file names for the repository; zero if it names
// none.
func readRecipient(path string, id backup.RepositoryID) (recipient string, signer seal.Signer, err error) {
	data, err := readKeyFile(path, maxIdentityBytes)
	if err != nil {
		return "", signer, unusable(err)
	}
	if recipient, signer, err = parseRecipient(path, data, id); err != nil {
		err = unusable(err)
	}
	return recipient, signer, err
}

func parseRecipient(path string, data []byte, id backup.RepositoryID) (recipient string, signer seal.Signer, err error) {
	for line := range strings.Lines(string(data)) {
		if r, ok := strings.CutPrefix(line, publicKeyLine); ok {
			recipient = strings.TrimSpace(r)
		}
	}
	if recipient == "" {
		return "", signer, fmt.Errorf("identity file %s has no line %q: %w", path, publicKeyLine+"age1…", backup.ErrInvalid)
	}
	if signer, _, err = seal.SignerOf(data, id); err != nil {
		return "", signer, fmt.Errorf("%s: %w", path, err)
	}
	return recipient, signer, checkPair(data, recipient, path)
}

func checkPair(identity []byte, recipient, path string) error {
	opener, err := seal.NewOpener(identity)
	if err != nil {
		return fmt.Errorf("identity file %s: %w", path, err)
	}
	sealer, err := seal.NewSealer([]string{recipient})
	if err != nil {
		return fmt.Errorf("identity file %s: %w", path, err)
	}
	sealed, err := sealer.SealBlob([]byte("probe"))
	if err != nil {
		return err
	}
	if _, err := opener.OpenBlob(sealed); err != nil {
		return fmt.Errorf("identity file %s: its identity does not belong to its public key %s: %w", path, recipient, err)
	}
	return nil
}

// writeNew writes a file of mode 0600 durably and atomically. It fails with fs.ErrExist if the file
// exists.
func writeNew(path string, data []byte) (err error) {
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
	if err := os.Link(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
