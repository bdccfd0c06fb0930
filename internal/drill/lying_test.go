package drill

import (
	"context"

	"github.com/bctl/bctl/internal/source"
)

// A lyingSource returns other content of the files with a name, and their attributes as they are.
type lyingSource struct {
	source.Source
	name string
}

type lyingTree struct {
	source.Tree
	name string
}

type lyingDirectory struct {
	source.Directory
	name string
}

type lyingFile struct{ source.File }

func (s *lyingSource) Open(ctx context.Context, url string) (source.Tree, error) {
	t, err := s.Source.Open(ctx, url)
	return &lyingTree{t, s.name}, err
}

func (t *lyingTree) OpenDirectory(ctx context.Context, path string) (source.Directory, error) {
	d, err := t.Tree.OpenDirectory(ctx, path)
	if err != nil {
		return nil, err
	}
	return &lyingDirectory{d, t.name}, nil
}

func (d *lyingDirectory) OpenFile(ctx context.Context, name string) (source.File, error) {
	f, err := d.Directory.OpenFile(ctx, name)
	if err != nil || name != d.name {
		return f, err
	}
	return lyingFile{f}, nil
}

func (f lyingFile) ReadAt(p []byte, offset int64) (int, error) {
	n, err := f.File.ReadAt(p, offset)
	if n > 0 {
		p[0] ^= 1
	}
	return n, err
}
