package check

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/listing"
)

var (
	errOtherDirectory = fmt.Errorf("its row has the id of another directory: %w", backup.ErrCorrupt)
	errDigest         = fmt.Errorf("its row does not match its digest: %w", backup.ErrCorrupt)
)

// judge compares what a scan has counted with what the index says of each snapshot.
func (s *scan) judge(ctx context.Context) (findings []*Finding, err error) {
	findings = s.damaged
	var now, located sum // of the last snapshot in which something was looked for
	var missing []string
	for i := range s.snapshots {
		now.add(&s.sums[i])
		snap := &s.snapshots[i]
		texts := s.differences(snap, &now)
		if len(texts) == 0 {
			continue
		}
		f := s.finding(Snapshot, snap.Number, snap.Number)
		f.Text = strings.Join(texts, "; ")
		if now.damaged == 0 {
			if now.chain != located.chain || now.below != located.below { // otherwise the same is missing
				located = now
				if missing, err = s.locate(ctx, snap); err != nil {
					return nil, err
				}
			}
			if len(missing) > 0 {
				f.Text += "; missing or incomplete: " + strings.Join(missing, ", ")
			}
		}
		if n := len(findings); n > 0 && findings[n-1].Kind == Snapshot && findings[n-1].Text == f.Text {
			findings[n-1].Last = f.Last
			continue
		}
		findings = append(findings, f)
	}
	return findings, nil
}

// below of a complete snapshot: the root is listed nowhere.
func hashRoot() uint64 { return maphash.String(seed, "") }

// differences returns how the pages of a snapshot differ from what it should have.
func (s *scan) differences(snap *backup.Snapshot, now *sum) (texts []string) {
	if now.pages != snap.Pages {
		texts = append(texts, fmt.Sprintf("the index has %d of its %d pages, or other ones", now.pages.Pages, snap.Pages.Pages))
	}
	if now.damaged > 0 {
		return texts // what these pages have is not known, and they are reported
	}
	if now.chain != 0 {
		texts = append(texts, "directories lack some of their pages")
	}
	if now.below != hashRoot() && snap.Pages.Pages > 0 {
		texts = append(texts, "directories are missing, or are listed nowhere")
	}
	if got := (backup.Counts{Files: now.files, Directories: now.directories, Bytes: now.bytes}); len(texts) == 0 && !agree(&got, &snap.Counts) {
		texts = append(texts, fmt.Sprintf("it counts %d files, %d directories and %d bytes, and its pages have %d, %d and %d",
			snap.Counts.Files, snap.Counts.Directories, snap.Counts.Bytes, got.Files, got.Directories, got.Bytes))
	}
	return texts
}

func agree(a, b *backup.Counts) bool {
	return a.Files == b.Files && a.Directories == b.Directories && a.Bytes == b.Bytes
}

// maxLocated bounds the directories that are named.
const maxLocated = 20

// An openDirectory is a directory whose subdirectories have not all come yet.
type openDirectory struct {
	path  string
	names map[string]bool
	chain browse.Chain
}

// locate reads the pages of a snapshot in their order, and returns the first directories that are
// missing or lack pages. It has the subdirectories of the directories above the current one in
// memory.
func (c *checker) locate(ctx context.Context, snap *backup.Snapshot) (missing []string, err error) {
	var stack []*openDirectory
	leave := func() {
		d := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if d.chain.Err() != nil {
			missing = append(missing, rooted(d.path))
		}
		for _, name := range slices.Sorted(maps.Keys(d.names)) {
			missing = append(missing, backup.Join(d.path, name))
		}
	}
	for v, err := range c.Index.Pages(ctx, snap.ID, "") {
		if errors.Is(err, backup.ErrNotFound) || len(missing) >= maxLocated {
			break
		}
		if err != nil {
			return missing, err
		}
		page, err := listing.DecodePage(v)
		if err != nil {
			continue
		}
		for len(stack) > 0 && !within(v.Path, stack[len(stack)-1].path) {
			leave()
		}
		if len(stack) == 0 || stack[len(stack)-1].path != v.Path {
			if len(stack) > 0 {
				delete(stack[len(stack)-1].names, firstName(v.Path, stack[len(stack)-1].path))
			}
			stack = append(stack, &openDirectory{path: v.Path, names: map[string]bool{}})
		}
		d := stack[len(stack)-1]
		d.chain.Add(page.Key, page.Next)
		for i := range page.Entries {
			if page.Entries[i].Kind == backup.Directory {
				d.names[page.Entries[i].Name] = true
			}
		}
	}
	for len(stack) > 0 {
		leave()
	}
	return missing[:min(len(missing), maxLocated)], nil
}

// within reports whether path is dir or below it.
func within(path, dir string) bool { return dir == "" || backup.IsAtOrBelow(path, dir) }

// firstName returns the name in dir that leads to path.
func firstName(path, dir string) string {
	if dir != "" {
		path = path[len(dir)+1:]
	}
	name, _, _ := strings.Cut(path, "/")
	return name
}

// rooted returns a path, or "." for the root.
func rooted(path string) string {
	if path == "" {
		return "."
	}
	return path
}
