package doctor

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/source"
	"github.com/bctl/bctl/internal/source/nfs"
)

// An nfsDoctor checks a tree of an NFS server, which is read without a mount.
type nfsDoctor struct {
	url  string
	tree source.Tree

	entries, directories int
	listing              time.Duration // of all directories
	denied               string        // an entry that may not be read
	file                 [2]string     // directory and name of a file
}

func nfsGroup(url string) Group {
	d := &nfsDoctor{url: url}
	g := Group{Name: "source " + url}
	id := func(name string) string { return "source." + name + " " + url }
	g.add(id("export"), d.open).Timeout = time.Minute
	g.add(id("walk"), d.walk, id("export")).Timeout = time.Minute
	g.add(id("access"), d.access, id("walk")).Timeout = time.Minute
	return g
}

func (d *nfsDoctor) open(ctx context.Context) (f Finding) {
	started := time.Now()
	var err error
	if d.tree, err = nfs.New(nfs.Options{}).Open(ctx, d.url); err != nil {
		return failWith("check the URL, the exports of the server, and the firewall (docs/nfs.md)", err)
	}
	return ok("the server answers, and exports it to this machine: opened in %s", duration(time.Since(started)))
}

// walk lists directories, the ones at the top first.
func (d *nfsDoctor) walk(ctx context.Context) Finding {
	queue := []string{""}
	for ; len(queue) > 0 && d.entries < surveyed; queue = queue[1:] {
		below, err := d.list(ctx, queue[0])
		switch {
		case errors.Is(err, fs.ErrPermission):
			d.denied = "/" + queue[0]
		case err != nil && !source.IsGone(err):
			return failWith("check the file server and the network", err)
		}
		queue = append(queue, below...)
	}
	if d.entries == 0 && d.denied == "" {
		return warn("check the path", "it is empty")
	}
	return ok("%s examined, directories read: %d, in %s", plural(d.entries, "file"), d.directories, duration(d.listing))
}

// list lists a directory, up to the number of entries that are examined, and returns its
// subdirectories.
func (d *nfsDoctor) list(ctx context.Context, path string) (below []string, err error) {
	started := time.Now()
	defer func() { d.listing += time.Since(started) }()
	dir, err := d.tree.OpenDirectory(ctx, path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	d.directories++
	for d.entries < surveyed {
		entries, _, err := dir.Read(ctx, nil, func(name, _ string, err error) {
			if errors.Is(err, fs.ErrPermission) {
				d.denied = "/" + backup.Join(path, name)
			}
		})
		if errors.Is(err, io.EOF) {
			return below, nil
		}
		if err != nil {
			return below, err
		}
		for i := range entries {
			switch e := &entries[i]; {
			case e.Kind == backup.Directory:
				below = append(below, backup.Join(path, e.Name))
			case e.Kind == backup.File && e.Size > 0 && (d.file[1] == "" || e.Mode&0o004 == 0):
				d.file = [2]string{path, e.Name} // best one that not everybody may read
			}
			d.entries++
		}
	}
	return below, nil
}

// access reads a file, one that not everybody may read if there is one.
func (d *nfsDoctor) access(ctx context.Context) Finding {
	const advice = "export it with no_root_squash, and read as root: uid=0&gid=0&groups= in the URL"
	defer d.tree.Close()
	if d.denied != "" {
		return warn(advice, "this user may not read %q", d.denied)
	}
	if d.file[1] == "" {
		return skip("there is no file to test")
	}
	path := "/" + backup.Join(d.file[0], d.file[1])
	switch err := d.read(ctx); {
	case errors.Is(err, fs.ErrPermission):
		return warn(advice, "this user may not read %q", path)
	case err != nil:
		return failWith("check the file server and the network", err)
	}
	return ok("%q can be read", path)
}

func (d *nfsDoctor) read(ctx context.Context) error {
	dir, err := d.tree.OpenDirectory(ctx, d.file[0])
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := dir.OpenFile(ctx, d.file[1])
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.ReadAt(make([]byte, 1), 0)
	return err
}
