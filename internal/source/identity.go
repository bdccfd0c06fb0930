package source

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/bctl/bctl/internal/backup"
)

// Walkers and readers trust data only if it comes from the intended tree (I13). Only the functions
// in this file decide whether it does.

// visible asks what makes a tree visible to this machine.
func visible(url string) string {
	if strings.HasPrefix(url, "nfs://") {
		return "is it still exported to this machine?"
	}
	return "is it mounted here?"
}

// OpenRoot opens the tree at a URL. It fails with an OtherTreeError if the root is not the wanted
// one, or if there is none although the root was seen before: another machine may still see it. A
// zero root matches any.
func OpenRoot(ctx context.Context, s Source, url string, want backup.Root, by backup.Compare) (Tree, error) {
	t, err := s.Open(ctx, url)
	switch {
	case err == nil:
	case want.IsZero() || ctx.Err() != nil || IsTransient(err) || errors.Is(err, ErrExpired):
		return nil, err
	default:
		return nil, &OtherTreeError{What: fmt.Sprintf("%s can no longer be opened: %v; %s", url, err, visible(url))}
	}
	if why := want.Differs(t.Root(), by); why != "" {
		return nil, errors.Join(&OtherTreeError{
			What: fmt.Sprintf("%s is not the tree that was backed up before: %s. Is it mounted here? If the tree was made anew, back it up with --new-root (and --allow-shrink, if it is smaller)", url, why),
		}, t.Close())
	}
	return t, nil
}

// IsProven reports whether two roots that do not differ are certainly one root, because both have
// the attributes that distinguish a root from any other.
func IsProven(want, is backup.Root, by backup.Compare) bool {
	if want.ID == "" {
		is.ID = ""
	}
	if want.Inode == 0 {
		is.Inode = 0
	}
	if want.Born.IsZero() {
		is.Born = backup.Time{}
	}
	return is.IsUnique(by)
}

// IsLasting reports whether two roots that do not differ are certainly one root, even if file
// systems were mounted after the first was seen. Inode numbers do not prove it, because the roots
// of most file systems of one type have the same number.
func IsLasting(want, is backup.Root) bool {
	return want.ID != "" && is.ID != "" || !want.Born.IsZero() && !is.Born.IsZero()
}

// ResolveRoot is Resolve for the tree with the wanted root. It also returns the errors of OpenRoot.
func ResolveRoot(ctx context.Context, s Source, url, pattern string, want backup.Root, by backup.Compare) (resolved string, err error) {
	t, err := OpenRoot(ctx, s, url, want, by)
	if err != nil {
		return "", err
	}
	if err := t.Close(); err != nil {
		return "", err
	}
	return s.Resolve(ctx, url, pattern)
}

// An OtherTreeError reports that a path does not lead to the intended tree: the root is another, or
// a file system in the tree is no longer mounted. Another machine may see the intended tree, so it
// is a backup.ErrUnavailable.
type OtherTreeError struct{ What string }

func (e *OtherTreeError) Error() string { return e.What }

// Is implements errors.Is.
func (e *OtherTreeError) Is(target error) bool { return target == backup.ErrUnavailable }

// IsOtherTree reports whether an error is an OtherTreeError.
func IsOtherTree(err error) bool {
	_, ok := errors.AsType[*OtherTreeError](err)
	return ok
}

// IsGone reports whether err means that an entry no longer exists. Callers must not rely on it
// before CheckTree has returned nil.
func IsGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, backup.ErrOutside) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, ErrReplaced)
}

// CheckTree returns nil if everything that was read from the tree can be trusted: its root is the
// one that was opened, and a file system still begins at each directory of mounts, where one was
// seen before. Otherwise, the error wraps ErrExpired or backup.ErrUnavailable; if a path leads to
// something else, it is an OtherTreeError.
func CheckTree(ctx context.Context, t Tree, mounts []string) error {
	if err := t.Check(ctx); err != nil {
		return err
	}
	for _, mount := range mounts {
		if err := checkMount(ctx, t, mount); err != nil {
			return err
		}
	}
	return nil
}

func checkMount(ctx context.Context, t Tree, mount string) error {
	d, err := t.OpenDirectory(ctx, mount)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && !IsGone(err) {
		return fmt.Errorf("the file system that was mounted at %q cannot be opened: %w: %w", mount, err, backup.ErrUnavailable)
	}
	mounted := err == nil && d.Self().Flags&backup.Boundary != 0
	if err == nil {
		err = d.Close()
	}
	switch {
	case mounted && err != nil:
		return fmt.Errorf("close %q: %w: %w", mount, err, backup.ErrUnavailable)
	case !mounted:
		return &OtherTreeError{What: fmt.Sprintf("the file system that was mounted at %q is no longer mounted", mount)}
	}
	return nil
}

// MountsAbove returns the mounts that are path or one of its ancestors.
func MountsAbove(mounts []string, path string) (above []string) {
	for _, m := range mounts {
		if rest, ok := strings.CutPrefix(path, m); ok && (rest == "" || rest[0] == '/') {
			above = append(above, m)
		}
	}
	return above
}

// IsTransient reports whether an error says nothing about the tree, because this machine lacks a
// resource or the source does not answer. The same call may succeed later.
func IsTransient(err error) bool {
	return errors.Is(err, backup.ErrUnavailable) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOBUFS)
}

// MayBeAway reports whether an error can mean that the whole file server is unavailable. If Check
// then fails, the error proves nothing about the single entry.
func MayBeAway(err error) bool {
	for _, errno := range []syscall.Errno{
		syscall.EIO, syscall.ESTALE, syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.EHOSTDOWN, syscall.EHOSTUNREACH,
		syscall.ENETDOWN, syscall.ENETUNREACH, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EREMOTEIO, syscall.ESHUTDOWN,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return errors.Is(err, ErrStale)
}
