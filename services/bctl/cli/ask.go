package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/tty"
)

// maxPassphraseBytes is the maximum length of a file with a passphrase.
const maxPassphraseBytes = 64 << 10

// askFiles returns an Asker that knows what the settings name, and asks nobody.
func (a *app) askFiles() repo.Asker {
	if a.cfg == nil || a.cfg.Passphrase == "" {
		return repo.Asker{}
	}
	return repo.Asker{
		Passphrase: func(string) (string, error) { return readPassphrase(a.cfg.Passphrase) }, Opened: &a.asked.opened,
	}
}

// ask returns an Asker that asks at the terminal for what the settings do not name. It asks for the
// passphrase of a file once.
func (a *app) ask(ctx context.Context) repo.Asker {
	asker := a.askFiles()
	asker.Opened = &a.asked.opened
	asker.Plugin = seal.TerminalUI(func(format string, v ...any) { a.term.println(fmt.Sprintf(format, v...)) })
	if asker.Passphrase == nil {
		asker.Passphrase = func(path string) (string, error) {
			a.asked.Lock()
			defer a.asked.Unlock()
			if known, ok := a.asked.passphrases[path]; ok {
				return known, nil
			}
			secret, err := a.askSecret(ctx, fmt.Sprintf("passphrase of %s: ", display(path)))
			if err == nil {
				a.asked.passphrases = map[string]string{path: secret}
			}
			return secret, err
		}
	}
	return asker
}

// answers are the passphrases that a person has given, and the files that they have opened.
type answers struct {
	sync.Mutex
	passphrases map[string]string
	opened      sync.Map
}

// readPassphrase returns the first line of a file.
func readPassphrase(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("identity_passphrase_file: %w: %w", err, backup.ErrWrongKey)
	}
	line, _, _ := bytes.Cut(data, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) == 0 || len(data) > maxPassphraseBytes {
		return "", fmt.Errorf("identity_passphrase_file: %s has no passphrase in its first line: %w", path, backup.ErrWrongKey)
	}
	return string(line), nil
}

// askSecret asks the person at the terminal, and does not show the answer.
func (a *app) askSecret(ctx context.Context, question string) (string, error) {
	in, prompts, done, err := a.terminalInput()
	if err != nil {
		return "", fmt.Errorf("%sthere is no terminal to ask at: set identity_passphrase_file (BCTL_IDENTITY_PASSPHRASE_FILE): %w", question, backup.ErrWrongKey)
	}
	defer done()
	fd := int(in.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", fmt.Errorf("terminal: %w", err)
	}
	a.term.clear()
	fmt.Fprint(prompts, question)
	defer fmt.Fprintln(prompts)
	type answer struct {
		text []byte
		err  error
	}
	read := make(chan answer, 1)
	go func() { // ends with the process, if the person never answers
		text, err := term.ReadPassword(fd)
		read <- answer{text, err}
	}()
	select {
	case <-ctx.Done():
		return "", errors.Join(context.Cause(ctx), term.Restore(fd, before))
	case got := <-read:
		if got.err != nil {
			return "", fmt.Errorf("read the answer: %w", got.err)
		}
		return strings.TrimSuffix(string(got.text), "\r"), nil
	}
}

// terminalInput returns where to read a person's answer from, and where to write the question: the
// controlling terminal, or else the standard input if it is a terminal, and stderr.
func (a *app) terminalInput() (in *os.File, prompts io.Writer, done func(), err error) {
	in, err = os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err == nil {
		return in, in, func() { _ = in.Close() }, nil
	}
	if tty.Is(os.Stdin) {
		return os.Stdin, a.term, func() {}, nil
	}
	return nil, nil, nil, err
}

// newPassphrase asks twice for a passphrase that is to protect a file, or takes it from a setting.
func (a *app) newPassphrase(ctx context.Context) (string, error) {
	if a.cfg.Passphrase != "" {
		return readPassphrase(a.cfg.Passphrase)
	}
	first, err := a.askSecret(ctx, "new passphrase: ")
	if err != nil {
		return "", err
	}
	if first == "" {
		return "", usage("the passphrase is empty: choose one of several words")
	}
	second, err := a.askSecret(ctx, "the same again: ")
	if err != nil {
		return "", err
	}
	if first != second {
		return "", usage("the two passphrases differ; nothing was changed")
	}
	return first, nil
}
