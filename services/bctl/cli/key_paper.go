package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/paper"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/services/bctl/open"
)

func newKeyProtect(a *app) *cobra.Command {
	remove := false
	cmd := &cobra.Command{
		Use:   "protect FILE",
		Short: "Protect an identity file with a passphrase",
		Long: `Replaces an identity file by one that only a passphrase opens: an age file, as
age -p makes it. All commands accept such a file, and ask for the passphrase. On
a machine without a person, the setting identity_passphrase_file names a file
with the passphrase. If the file is protected already, its passphrase is
changed.

If you forget the passphrase, the identity is lost. The disk may keep the former
content of the file until it is overwritten.`,
		Example: "  bctl key protect ~/.config/bctl/identities/676f….txt",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.protect(cmd.Context(), given[0], remove)
		},
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "remove the passphrase")
	return cmd
}

func (a *app) protect(ctx context.Context, path string, remove bool) error {
	text, err := repo.ReadIdentityFile(path, a.ask(ctx))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("identity file %s does not exist: %w", path, backup.ErrWrongKey)
	}
	if err != nil {
		return err
	}
	if _, err := seal.NewOpener(text); err != nil {
		return fmt.Errorf("%s: %w", path, errors.Join(err, backup.ErrWrongKey))
	}
	file, action := text, "unprotected"
	if !remove {
		action = "protected"
		if file, err = a.protected(ctx, text); err != nil {
			return err
		}
	}
	if err := repo.ReplaceFile(path, file); err != nil {
		return fmt.Errorf("replace %s: %w", path, err)
	}
	type protectedJSON struct {
		Identity string `json:"identity"`
		Action   string `json:"action"` // protected or unprotected
	}
	said := "a passphrase protects %s\n"
	if remove {
		said = "no passphrase protects %s any more\n"
	}
	return a.result(protectedJSON{path, action}, said, path)
}

// protected returns the text of an identity file under a new passphrase, after a test that the
// passphrase opens it.
func (a *app) protected(ctx context.Context, text []byte) ([]byte, error) {
	passphrase, err := a.newPassphrase(ctx)
	if err != nil {
		return nil, err
	}
	file, err := seal.Protect(text, passphrase)
	if err != nil {
		return nil, err
	}
	again, err := seal.Unprotect(file, passphrase)
	if err == nil && !bytes.Equal(again, text) {
		err = errors.New("the protected file does not open again; nothing was changed")
	}
	return file, err
}

type keyExport struct {
	app *app
	qr  bool
	png string
}

func newKeyExport(a *app) *cobra.Command {
	c := &keyExport{app: a}
	cmd := &cobra.Command{
		Use:   "export [FILE]",
		Short: "Print an identity, to keep it on paper",
		Long: `Prints an identity as lines that can be typed again, each with a check, and a QR
code with --qr or --png. bctl key import restores the identity file from either.
Without FILE, the configured identity is printed. The text is not protected by a
passphrase: anyone who reads the paper can read all backups.`,
		Example: `  bctl key export --qr | lp
  bctl key export /media/usb/second.txt --png second.png`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given) },
	}
	cmd.Flags().BoolVar(&c.qr, "qr", false, "print a QR code, too")
	cmd.Flags().StringVar(&c.png, "png", "", "write the QR code to `FILE`, which must not exist")
	return cmd
}

// paperJSON is the result of key export, and a line of key split. The names are fixed.
type paperJSON struct {
	Content string   `json:"content"` // that of the QR code
	Lines   []string `json:"lines"`
	Share   int      `json:"share,omitempty"`
	Needed  int      `json:"needed,omitempty"` // shares
}

func (c *keyExport) run(ctx context.Context, given []string) error {
	content, _, err := c.app.paperIdentity(ctx, given, paper.EncodeIdentity)
	if err != nil {
		return err
	}
	code, err := paper.NewCode(content)
	if err != nil {
		return err
	}
	if c.png != "" {
		picture, err := code.PNG()
		if err != nil {
			return err
		}
		if err := repo.WriteNewFile(c.png, picture); err != nil {
			return fmt.Errorf("write the QR code: %w", err)
		}
	}
	text := paperText("This is an identity of bctl. Anyone who has it can read all backups that are sealed to it.\n"+
		"To restore its file, type the lines into: bctl key import --output FILE\n"+
		"Case and spaces do not matter. A line with a mistake is named.", paper.Lines(content))
	if c.qr {
		text += "\n" + code.Text(c.app.term.outIs)
	}
	if c.app.json {
		return c.app.print(paperJSON{Content: content, Lines: paper.Lines(content)})
	}
	_, err = io.WriteString(c.app.out, text)
	return err
}

func paperText(about string, lines []string) string {
	return about + "\n\n" + strings.Join(lines, "\n") + "\n"
}

// paperIdentity reads the identity that a command names, or the configured one, and encodes it.
func (a *app) paperIdentity(ctx context.Context, given []string, encode func(identity string, t paper.Trusted) (string, error)) (content, path string, err error) {
	if path, err = a.oneIdentityFile(ctx, given); err != nil {
		return "", path, err
	}
	file, identity, err := a.readOneIdentity(ctx, path)
	if err != nil {
		return "", path, err
	}
	trusted, err := seal.SignersOf(file)
	if err != nil {
		return "", path, fmt.Errorf("%s: %w", path, errors.Join(err, backup.ErrWrongKey))
	}
	var t paper.Trusted
	if len(trusted) == 1 {
		for id, signer := range trusted {
			t = paper.Trusted{Repository: id, Signer: signer}
		}
	} else {
		a.note("%s names the signers of %s; the paper names none", path, counted(len(trusted), "repository"))
	}
	content, err = encode(identity, t)
	return content, path, wrongSetting(err)
}

// oneIdentityFile returns the file that is named, the configured one, or the repository's default.
func (a *app) oneIdentityFile(ctx context.Context, given []string) (string, error) {
	if len(given) > 0 {
		return given[0], nil
	}
	if a.cfg.Identity != "" {
		return a.cfg.Identity, nil
	}
	s, err := open.Store(ctx, a.cfg, false, a.log)
	if err != nil {
		return "", wrongSetting(err)
	}
	defer s.Close()
	object, err := repo.ReadObject(ctx, s)
	if err != nil {
		return "", err
	}
	return repo.DefaultIdentityPath(object.ID)
}

type keyImport struct {
	app     *app
	output  string
	protect bool
}

func newKeyImport(a *app) *cobra.Command {
	c := &keyImport{app: a}
	cmd := &cobra.Command{
		Use:   "import [FILE]",
		Short: "Restore an identity file from a text that was typed or scanned",
		Long: `Reads the lines that bctl key export has printed, or the content of its QR code,
from FILE or from the standard input, and writes an identity file. Case, spaces
and other lines do not matter. A line with a typing mistake is named.`,
		Example: `  bctl key import typed.txt --output ~/identity.txt
  bctl key import --output ~/identity.txt --protect`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given) },
	}
	c.flags(cmd)
	return cmd
}

func (c *keyImport) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.output, "output", "", "write the identity to `FILE`, which must not exist (required)")
	cmd.Flags().BoolVar(&c.protect, "protect", false, "protect it with a passphrase")
}

func (c *keyImport) run(ctx context.Context, given []string) error {
	if c.output == "" {
		return usage("name the file to write, with --output FILE")
	}
	contents, err := readPaper(given, os.Stdin)
	if err != nil {
		return err
	}
	if len(contents) != 1 {
		return usage("the text has %s: import one at a time", counted(len(contents), "identity"))
	}
	identity, t, err := paper.DecodeIdentity(contents[0])
	if err != nil {
		return wrongSetting(err)
	}
	return c.write(ctx, identity, t)
}

// write writes an identity file.
func (c *keyImport) write(ctx context.Context, identity string, t paper.Trusted) error {
	text, err := repo.IdentityText(identity, t.Repository, t.Signer)
	if err != nil {
		return wrongSetting(err)
	}
	file := text
	if c.protect {
		if file, err = c.app.protected(ctx, text); err != nil {
			return err
		}
	}
	if err := repo.WriteNewFile(c.output, file); err != nil {
		return fmt.Errorf("write the identity: %w", err)
	}
	type importedJSON struct {
		Identity   string   `json:"identity"`
		Recipients []string `json:"recipients"`
	}
	of, err := seal.RecipientsOf(text)
	if err != nil {
		return err
	}
	return c.app.result(importedJSON{c.output, of}, "wrote %s, the identity of %s\n", c.output, of[0])
}

// readPaper reads the contents in texts.
func readPaper(paths []string, stdin io.Reader) (contents []string, err error) {
	if len(paths) == 0 {
		paths = []string{"-"}
	}
	for _, path := range paths {
		text, err := readPaperFile(path, stdin)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		found, err := paper.Decode(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, wrongSetting(err))
		}
		contents = append(contents, found...)
	}
	return contents, nil
}

// readPaperFile reads a file, or the standard input for "-", up to a little more than a text may
// have.
func readPaperFile(path string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	return io.ReadAll(io.LimitReader(in, paper.MaxBytes+1))
}
