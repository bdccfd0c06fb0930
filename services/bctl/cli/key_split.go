package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/paper"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/services/bctl/open"
)

type keySplit struct {
	app       *app
	shares    int
	threshold int
	dir       string
}

func newKeySplit(a *app) *cobra.Command {
	c := &keySplit{app: a}
	cmd := &cobra.Command{
		Use:   "split [FILE]",
		Short: "Split an identity into shares, some of which recover it",
		Long: `Splits an identity into shares (Shamir's secret sharing): any NEEDED of them
recover it with bctl key combine, and fewer reveal nothing about it. Each share
is a text that can be printed and typed again. Without FILE, the configured
identity is split.

The identity file itself is not changed. If the shares are to replace it, test
them with bctl key combine, and then delete the file and its copies.`,
		Example: `  bctl key split -n 5 -m 3
  bctl key split ~/identity.txt -n 5 -m 3 --dir /media/usb/shares`,
		Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), given) },
	}
	numberFlagP(cmd.Flags(), &c.shares, "shares", "n", 0, 2, paper.MaxShares, "make `SHARES` shares (required)")
	numberFlagP(cmd.Flags(), &c.threshold, "needed", "m", 0, 2, paper.MaxShares, "any `NEEDED` of them recover the identity (required)")
	cmd.Flags().StringVar(&c.dir, "dir", "", "write each share to a file of its own in `DIR`, instead of printing all")
	return cmd
}

func (c *keySplit) run(ctx context.Context, given []string) error {
	if c.shares == 0 || c.threshold == 0 {
		return usage("say how many shares to make, and how many of them are needed: -n 5 -m 3")
	}
	var shares []paper.Share
	_, path, err := c.app.paperIdentity(ctx, given, func(identity string, t paper.Trusted) (_ string, err error) {
		shares, err = paper.Split(identity, t, c.threshold, c.shares)
		return "", err
	})
	if err != nil {
		return err
	}
	if c.dir != "" {
		if err := os.MkdirAll(c.dir, 0o700); err != nil {
			return err
		}
	}
	for i := range shares {
		if err := c.print(path, &shares[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *keySplit) print(path string, s *paper.Share) error {
	content := s.Encode()
	text := paperText(fmt.Sprintf("Share %d of %d of an identity of bctl. Any %d of them recover the identity:\n"+
		"bctl key combine SHARE… --output FILE. Fewer reveal nothing about it.\n"+
		"Set %X. Case and spaces do not matter. A line with a mistake is named.", s.Index, c.shares, s.Threshold, s.Set[:]), paper.Lines(content))
	if c.dir != "" {
		name := filepath.Join(c.dir, fmt.Sprintf("share-%X-%02d.txt", s.Set[:], s.Index))
		if err := repo.WriteNewFile(name, []byte(text)); err != nil {
			return fmt.Errorf("write a share of %s: %w", path, err)
		}
		type writtenJSON struct {
			Share  int    `json:"share"`
			Needed int    `json:"needed"`
			File   string `json:"file"`
		}
		return c.app.result(writtenJSON{s.Index, s.Threshold, name}, "%s\n", name)
	}
	if c.app.json {
		return c.app.print(paperJSON{Content: content, Lines: paper.Lines(content), Share: s.Index, Needed: s.Threshold})
	}
	_, err := io.WriteString(c.app.out, text+"\n")
	return err
}

func newKeyCombine(a *app) *cobra.Command {
	c := &keyImport{app: a}
	unchecked := false
	cmd := &cobra.Command{
		Use:   "combine [SHARE…]",
		Short: "Recover an identity from its shares",
		Long: `Reads shares that bctl key split has made, from files or from the standard
input, and writes the identity file. It then tests whether the identity opens
the keys of the repository. With --unchecked it does not, so that no repository
is needed.`,
		Example: "  bctl key combine one.txt two.txt three.txt --output ~/identity.txt",
		Args:    args(cobra.ArbitraryArgs),
		RunE: func(cmd *cobra.Command, given []string) error {
			return a.combine(cmd.Context(), c, given, unchecked)
		},
	}
	c.flags(cmd)
	cmd.Flags().BoolVar(&unchecked, "unchecked", false, "do not test the identity on a repository")
	return cmd
}

func (a *app) combine(ctx context.Context, c *keyImport, given []string, unchecked bool) error {
	if c.output == "" {
		return usage("name the file to write, with --output FILE")
	}
	contents, err := readPaper(given, os.Stdin)
	if err != nil {
		return err
	}
	shares := make([]paper.Share, len(contents))
	for i, content := range contents {
		if shares[i], err = paper.DecodeShare(content); err != nil {
			return wrongSetting(err)
		}
	}
	identity, t, err := paper.Combine(shares)
	if err != nil {
		return wrongSetting(err)
	}
	if !unchecked {
		if err := a.checkIdentity(ctx, identity, t); err != nil {
			return err
		}
	}
	return c.write(ctx, identity, t)
}

// checkIdentity returns an error unless an identity opens the keys of the repository in the store.
func (a *app) checkIdentity(ctx context.Context, identity string, t paper.Trusted) error {
	s, err := open.Store(ctx, a.cfg, false, a.log)
	if err != nil {
		return fmt.Errorf("the identity cannot be tested on a repository (--unchecked writes it without): %w", wrongSetting(err))
	}
	defer s.Close()
	object, err := repo.ReadObject(ctx, s)
	if err == nil && t.Repository == object.ID {
		err = object.CheckSigner(t.Signer, "the shares")
	}
	if err == nil {
		err = object.LoadRecipients(ctx, s)
	}
	if err != nil {
		return err
	}
	opener, err := seal.NewOpener([]byte(identity))
	if err != nil {
		return err
	}
	if _, err := object.WorkerKey(opener); err != nil {
		return fmt.Errorf("the recovered identity does not open repository %v (--unchecked writes it anyway): %w", object.ID, errors.Join(backup.ErrWrongKey, err))
	}
	return nil
}
