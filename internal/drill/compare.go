package drill

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
	"github.com/bctl/bctl/internal/listing"
	"github.com/bctl/bctl/internal/restore/target"
)

// maxNotCarried bounds the attributes that a report counts.
const maxNotCarried = 32

// A comparison compares one restored tree with the listings of a snapshot.
type comparison struct {
	catalog  browse.Catalog
	snapshot backup.SnapshotID
	top      string          // that was restored
	only     map[string]bool // paths within the shard; nil: everything
	root     *target.Root    // the restored tree
	why      map[string]string
	report   *Report
	part     *Part
	content  *content
	probe    *prober
	live     *live // nil: not compared
	links    links

	dir    string // current directory, within the shard
	begun  bool
	listed int // names that dir should have
}

// run compares the tree. Its error ends the drill.
func (c *comparison) run(ctx context.Context) error {
	for v, err := range c.catalog.Pages(ctx, c.snapshot, c.top) {
		if err != nil {
			return err
		}
		page, err := listing.DecodePage(v)
		if err != nil {
			continue // the restore has reported it
		}
		if !c.begun || page.Path != c.dir {
			c.leave()
			c.begun, c.dir, c.listed = true, page.Path, 0
		}
		if err := c.comparePage(ctx, &page); err != nil {
			return err
		}
	}
	c.leave()
	return nil
}

// relative returns a path within the restored tree.
func (c *comparison) relative(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, c.top), "/")
}

func (c *comparison) wants(path string) bool { return c.only == nil || c.only[path] }

// comparePage compares what a page lists.
func (c *comparison) comparePage(ctx context.Context, page *backup.Page) error {
	c.links.enter(page)
	var wanted []*backup.Entry
	for i := range page.Entries {
		if e := &page.Entries[i]; e.Kind != backup.Directory && c.wants(backup.Join(page.Path, e.Name)) {
			wanted = append(wanted, e)
		} else if e.Kind == backup.Directory {
			c.listed++
		}
	}
	c.listed += len(wanted)
	if c.only != nil && len(wanted) == 0 {
		return nil
	}
	if page.Self != nil && page.Self.HadVanished() {
		c.report.Flawed++
		return nil
	}
	at, err := c.root.Dir(c.relative(page.Path))
	if err != nil {
		c.fail(page.Path, "directory", err)
		c.listed = -1
		return nil
	}
	defer at.Release()
	if page.Self != nil && c.only == nil {
		if err := c.compareSelf(ctx, at, page); err != nil {
			return err
		}
	}
	for _, e := range wanted {
		if err := c.compareEntry(ctx, at, page.Path, e); err != nil {
			return err
		}
	}
	return nil
}

// leave checks that the current directory has nothing that its listing has not.
func (c *comparison) leave() {
	if !c.begun || c.only != nil || c.listed < 0 {
		return
	}
	at, err := c.root.Dir(c.relative(c.dir))
	if err != nil {
		return // reported, or it had vanished
	}
	defer at.Release()
	names := 0
	err = at.Names(func(string) error { names++; return nil })
	switch {
	case err != nil:
		c.fail(c.dir, "names", err)
	case names > c.listed:
		c.fail(c.dir, "names", fmt.Errorf("the restored directory has %d names, and its listing %d", names, c.listed))
	}
}

// compareSelf compares the attributes of a directory.
func (c *comparison) compareSelf(ctx context.Context, at *target.Dir, page *backup.Page) error {
	c.part.Entries++
	if page.Self.Flags&backup.Flawed != 0 {
		c.report.Flawed++
	}
	if page.Self.Flags&backup.AttributesUnknown != 0 {
		return nil
	}
	have, err := at.Stat(".")
	if err != nil {
		c.fail(page.Path, "directory", err)
		return nil
	}
	return c.compareAttributes(ctx, at, ".", page.Path, page.Self, &have)
}

// compareEntry compares an entry that is not a directory.
func (c *comparison) compareEntry(ctx context.Context, at *target.Dir, dir string, e *backup.Entry) error {
	path := backup.Join(dir, e.Name)
	if e.Flags&backup.Flawed != 0 {
		c.report.Flawed++
	}
	if !restorable(e) {
		return nil
	}
	have, err := at.Stat(e.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !c.probe.exists(e):
		c.notCarried(e.Kind.String())
		return nil
	case errors.Is(err, fs.ErrNotExist):
		c.fail(path, "missing", errors.New("it was not restored"))
		return nil
	case err != nil:
		c.fail(path, "stat", err)
		return nil
	}
	c.part.Entries++
	if what, differs := different(e, &have); what != "" {
		c.fail(path, what, differs)
		return nil
	}
	if e.Kind == backup.File {
		if err := c.compareContent(ctx, at, path, e); err != nil {
			return err
		}
	}
	if what, other := c.links.compare(path, e, &have); what == isCopy && !c.probe.linked(e) {
		c.notCarried("link")
	} else if what != linksAgree {
		c.fail(path, "link", what.describe(other))
	}
	if e.Flags&backup.AttributesUnknown != 0 {
		return nil
	}
	return c.compareAttributes(ctx, at, e.Name, path, e, &have)
}

// different compares what makes an entry another one. what is empty if nothing differs.
func different(e, have *backup.Entry) (what string, err error) {
	switch {
	case e.Kind != have.Kind:
		return "kind", fmt.Errorf("it is a %v, and was a %v", have.Kind, e.Kind)
	case e.Kind == backup.File && e.Size != have.Size:
		return "size", fmt.Errorf("it has %d bytes, and had %d", have.Size, e.Size)
	case e.Kind == backup.Symlink && e.Target != have.Target:
		return "target", fmt.Errorf("it leads to %q, and led to %q", have.Target, e.Target)
	case (e.Kind == backup.CharDev || e.Kind == backup.BlockDev) && e.Rdev != have.Rdev:
		return "device", fmt.Errorf("its device number is %#x, and was %#x", have.Rdev, e.Rdev)
	}
	return "", nil
}

func (c *comparison) compareContent(ctx context.Context, at *target.Dir, path string, e *backup.Entry) error {
	in, err := at.OpenRead(e.Name)
	if err != nil {
		c.fail(path, "content", err)
		return nil
	}
	defer in.Close()
	holes := &holes{in: in, size: e.Size}
	failed, fatal := c.content.compare(ctx, in, e, holes.compare)
	switch {
	case fatal != nil:
		return fatal
	case failed != nil:
		c.fail(path, "content", failed)
		return nil
	}
	if from, to := holes.filled(); from < to && c.probe.hole(e, from, to) {
		c.fail(path, "hole", fmt.Errorf("the %d bytes from %d are zeros that use space, and were a hole", to-from, from))
	} else if from < to {
		c.notCarried("hole")
	}
	c.part.Files++
	if c.live == nil {
		return nil
	}
	return c.live.compare(ctx, path, e, c.content, c.report)
}

// compareAttributes compares the attributes of a name in at, which has the attributes have.
func (c *comparison) compareAttributes(ctx context.Context, at *target.Dir, name, path string, e, have *backup.Entry) error {
	for _, a := range []struct {
		what    string
		equal   bool
		carries func(*backup.Entry) bool
		is, was string
	}{
		{"owner", e.UID == have.UID && e.GID == have.GID, c.probe.owner, fmt.Sprint(have.UID, ":", have.GID), fmt.Sprint(e.UID, ":", e.GID)},
		{"mode", e.Mode == have.Mode || e.Kind == backup.Symlink, c.probe.mode, fmt.Sprintf("%04o", have.Mode), fmt.Sprintf("%04o", e.Mode)},
		{"mtime", e.Mtime == have.Mtime, c.probe.mtime, have.Mtime.Time().String(), e.Mtime.Time().String()},
	} {
		switch {
		case a.equal:
		case a.carries(e):
			c.fail(path, a.what, fmt.Errorf("it is %s, and was %s", a.is, a.was))
		default:
			c.notCarried(a.what)
		}
	}
	wanted, failed, fatal := c.content.xattrs(ctx, e)
	switch {
	case fatal != nil:
		return fatal
	case failed != nil:
		c.fail(path, "xattr", failed)
		return nil
	}
	c.compareXattrs(at, name, path, e, wanted)
	return nil
}

func (c *comparison) compareXattrs(at *target.Dir, name, path string, e *backup.Entry, wanted []backup.Xattr) {
	var has []backup.Xattr
	for i := range wanted {
		x := &wanted[i]
		switch {
		case at.HasXattrs(name, wanted[i:i+1], false):
			has = append(has, *x)
		case c.probe.xattr(e, x):
			c.fail(path, "xattr", fmt.Errorf("%s is missing, or has another value", x.Name))
		default:
			namespace, _, _ := strings.Cut(x.Name, ".")
			c.notCarried("xattr " + namespace)
		}
	}
	if e.Flags&(backup.XattrsUnreadable|backup.XattrsWanted) == 0 && !at.HasXattrs(name, has, true) {
		c.fail(path, "xattr", errors.New("it has extended attributes that it did not have"))
	}
}

// fail records a failure. What the restore has reported of the path explains it best.
func (c *comparison) fail(path, what string, err error) {
	text := err.Error()
	if why, ok := c.why[path]; ok {
		text += " (" + why + ")"
	}
	c.report.fail(path, what, text)
}

func (c *comparison) notCarried(attribute string) {
	if c.report.NotCarried == nil {
		c.report.NotCarried = map[string]int64{}
	}
	if _, ok := c.report.NotCarried[attribute]; !ok && len(c.report.NotCarried) >= maxNotCarried {
		attribute = "other"
	}
	c.report.NotCarried[attribute]++
}
