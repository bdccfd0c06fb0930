package entindex

import (
	"fmt"
	"math"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/settings"
)

// validate refuses what no honest worker sends. A result that it accepts cannot make a statement
// fail, so no result affects the others of its call.
func validate(r index.Result) error {
	switch {
	case r.Slice != nil && r == index.Result{Slice: r.Slice}:
		return validateSlice(r.Slice)
	case r.Pack != nil && r == index.Result{Pack: r.Pack}:
		return validatePack(r.Pack)
	case r.Lists != nil && r == index.Result{Lists: r.Lists}:
		return validateLists(r.Lists)
	case r.Batch != nil && r == index.Result{Batch: r.Batch, GiveUp: r.GiveUp}:
		return validateBatch(r.Batch)
	}
	return invalid("a result must be exactly one of slice, pack, lists and batch")
}

func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, backup.ErrInvalid)...)
}

func validateSlice(s *backup.SliceWalked) error {
	if s.Task <= 0 || s.Attempt <= 0 || s.Part < 0 || s.Part >= index.MaxParts {
		return invalid("task %d, attempt %d, part %d", s.Task, s.Attempt, s.Part)
	}
	if len(s.Source) > settings.MaxSourceBytes || !settings.IsText(s.Source) {
		return invalid("source of task %d", s.Task)
	}
	// The root is stored as a text, which must parse to the same root.
	if root, err := backup.ParseRoot(s.Root.String()); err != nil || root != s.Root || !settings.IsText(s.Root.String()) {
		return invalid("root of task %d", s.Task)
	}
	if !validCounts(&s.Counts) {
		return invalid("counts of task %d", s.Task)
	}
	if err := validatePages(s.Pages); err != nil {
		return err
	}
	for _, name := range s.Ended {
		if err := validateName(name.Path, name.Key); err != nil {
			return err
		}
	}
	for _, path := range s.Removed {
		// The root cannot have been removed: a shard without its root fails.
		if path == "" {
			return invalid("removal of the root")
		}
		if err := backup.CheckPath(path); err != nil {
			return err
		}
	}
	for _, b := range s.Batches {
		if len(b.Pages) == 0 {
			return invalid("a batch without pages")
		}
		if err := validatePages(b.Pages); err != nil {
			return err
		}
		if err := validatePaths(b.Mounts); err != nil {
			return err
		}
	}
	for _, c := range s.Children {
		if len(c.Directories) == 0 {
			return invalid("a child task without directories")
		}
		if err := validatePaths(c.Directories); err != nil {
			return err
		}
		if err := validatePaths(c.Mounts); err != nil {
			return err
		}
	}
	return validateProblems(s.Problems)
}

// isSnapshotOf reports whether url names a source snapshot below source: its URL is the source's
// with a longer query. Without this check, a compromised walker could make the others read any
// source.
func isSnapshotOf(url, source string) bool {
	rest, ok := strings.CutPrefix(url, source)
	return ok && (rest == "" || rest[0] == '?' || rest[0] == '&')
}

func validatePack(p *backup.PackStored) error {
	if p.StoredBytes < 0 || len(p.Chunks) > index.MaxChunks || len(p.FrameBytes) > index.MaxChunks {
		return invalid("pack %s: %d bytes, %d chunks, %d frames", p.Pack, p.StoredBytes, len(p.Chunks), len(p.FrameBytes))
	}
	if len(p.Sums) > 0 && !pack.Sums(p.Sums).Fit(len(p.FrameBytes)) {
		return invalid("pack %s: %d bytes of checksums for %d frames", p.Pack, len(p.Sums), len(p.FrameBytes))
	}
	for i := range p.Chunks {
		c := &p.Chunks[i]
		if c.Frame >= uint32(len(p.FrameBytes)) || c.Offset > math.MaxInt32 || c.Length > math.MaxInt32 {
			return invalid("pack %s: place of chunk %s", p.Pack, c.ID)
		}
	}
	return nil
}

func validateLists(l *backup.ListsStored) error {
	total := len(l.Lists)
	for i := range l.Lists {
		total += len(l.Lists[i].Chunks)
	}
	if total > index.MaxChunks {
		return invalid("%d lists, %d chunks with those that they refer to", len(l.Lists), total)
	}
	return nil
}

func validateBatch(b *backup.BatchStored) error {
	if b.Batch <= 0 || b.Attempt <= 0 || len(b.ReliesOn) > index.MaxReliesOn {
		return invalid("batch %d, attempt %d, %d packs", b.Batch, b.Attempt, len(b.ReliesOn))
	}
	if !validCorrection(&b.Counts) {
		return invalid("counts of batch %d", b.Batch)
	}
	if err := validatePages(b.Pages); err != nil {
		return err
	}
	return validateProblems(b.Problems)
}

func validatePages(pages []backup.PageVersion) error {
	for i := range pages {
		p := &pages[i]
		if err := validateName(p.Path, p.Key); err != nil {
			return err
		}
		if len(p.Listing) > index.MaxListingBytes {
			return invalid("listing of %d bytes", len(p.Listing))
		}
	}
	return nil
}

func validatePaths(paths []string) error {
	for _, path := range paths {
		if err := backup.CheckPath(path); err != nil {
			return err
		}
	}
	return nil
}

func validateName(path string, key backup.PageKey) error {
	if key < 0 {
		return invalid("page key %d", key)
	}
	return backup.CheckPath(path)
}

func validateProblems(problems []backup.Problem) error {
	for i := range problems {
		if len(problems[i].Path) > backup.MaxPathBytes {
			return invalid("path of %d bytes", len(problems[i].Path))
		}
	}
	return nil
}

// text returns s as a text column can hold it: valid UTF-8 without NUL, of at most maxBytes.
func text(s string, maxBytes int) string {
	if len(s) > maxBytes {
		s = s[:maxBytes]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
