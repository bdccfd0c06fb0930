//go:build linux

package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
)

// Resolve implements source.Source.
func (s *Source) Resolve(ctx context.Context, rawURL, pattern string) (string, error) {
	if err := source.CheckPattern(pattern); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if _, snapshot, err := source.CutSnapshot(rawURL); err != nil || snapshot != nil {
		return "", fmt.Errorf("source %q: a source snapshot has none: %w", rawURL, errors.Join(err, backup.ErrInvalid))
	}
	t, err := s.open(ctx, rawURL)
	if err != nil {
		return "", err
	}
	defer t.Close()
	n, err := source.FindSnapshot(ctx, t, t.address.path, pattern)
	if err != nil {
		return "", err
	}
	return n.URL(rawURL), nil
}

// enter makes t the tree of a source snapshot in it. The URL identifies the snapshot; the root
// stays that of the tree in which it is.
func (t *tree) enter(ctx context.Context, snapshot *source.Snapshot) error {
	found, err := t.findSnapshot(ctx, t.root, snapshot)
	if err != nil {
		return err
	}
	t.snapshot, t.root = snapshot, found
	return nil
}

// findSnapshot finds the root of a source snapshot below top. It fails with ErrExpired if that is
// not there, or is another.
func (t *tree) findSnapshot(ctx context.Context, top node, snapshot *source.Snapshot) (node, error) {
	found, err := t.server.find(ctx, top, snapshot.Path)
	if err != nil {
		return node{}, t.snapshotError(snapshot, err)
	}
	return found, t.compare(ctx, found, snapshot)
}

// compare fails with ErrExpired unless the directory is the root of the snapshot.
func (t *tree) compare(ctx context.Context, at node, snapshot *source.Snapshot) error {
	a, err := t.server.nfs.GetAttr(ctx, at.handle)
	if err != nil {
		return t.snapshotError(snapshot, err)
	}
	e, err := entryOf(&a)
	if err != nil {
		return t.snapshotError(snapshot, err)
	}
	if *source.SnapshotAt(snapshot.Path, &e) != *snapshot {
		return fmt.Errorf("%q in %q was replaced by another source snapshot: %w", snapshot.Path, t, source.ErrExpired)
	}
	return nil
}

// snapshotError is ErrExpired if a source snapshot no longer exists.
func (t *tree) snapshotError(n *source.Snapshot, err error) error {
	err = asError(err)
	switch {
	case isGone(err):
		return fmt.Errorf("%q in %q is gone (%w): %w", n.Path, t, err, source.ErrExpired)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("open %q in %q: %w", n.Path, t, err)
	}
	return fmt.Errorf("open %q in %q: %w: %w", n.Path, t, err, backup.ErrUnavailable)
}

// checkSnapshot is Check for a source snapshot. It checks the open root, and the directory at its
// path.
func (t *tree) checkSnapshot(ctx context.Context) error {
	if err := t.compare(ctx, t.root, t.snapshot); err != nil {
		return err
	}
	top, err := t.server.mount(ctx, t.address.path)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s can no longer be opened: %w: %w", t, asError(err), backup.ErrUnavailable)
	}
	_, err = t.findSnapshot(ctx, top, t.snapshot)
	return err
}
