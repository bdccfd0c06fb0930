//go:build linux

package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/chunk"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/repo"
	"github.com/bctl/bctl/internal/seal"
	"github.com/bctl/bctl/internal/store/dirstore"
)

// A packFloor is the least work of a check of all content: each pack is read and opened, and each
// of its frames is decrypted, decompressed and, if verify is set, hashed chunk by chunk. It uses
// the library that bctl uses, and looks at nothing but packs. Each object must be one pack with the
// object's name, as it is if nothing was ever pruned.
type packFloor struct {
	repository backup.RepositoryID
	opener     *seal.Opener
	hashKey    seal.DedupKey
	verify     bool
}

// floorPacks does that work for a repository in a directory. The identity is that of bctl init.
func floorPacks(directory string, verify bool) error {
	s, err := dirstore.Open(filepath.Join(directory, "store"))
	if err != nil {
		return err
	}
	defer s.Close()
	object, err := repo.ReadObject(context.Background(), s)
	if err != nil {
		return err
	}
	identity, err := repo.FindIdentity("", object.ID, repo.Asker{})
	if err != nil {
		return err
	}
	key, err := object.WorkerKey(identity.Opener)
	if err != nil {
		return err
	}
	f := &packFloor{repository: object.ID, opener: identity.Opener, hashKey: key.Dedup, verify: verify}
	return f.run(filepath.Join(directory, "store", "packs"))
}

func (f *packFloor) run(directory string) error {
	files := make(chan string)
	workers, ctx := errgroup.WithContext(context.Background())
	workers.Go(func() error {
		defer close(files)
		return filepath.WalkDir(directory, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			select {
			case files <- path:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	})
	for range 2 * runtime.NumCPU() { // as many as a check reads at a time
		workers.Go(func() error {
			r := packReader{packFloor: f}
			if f.verify {
				r.hasher = chunk.NewHasher([32]byte(f.hashKey))
			}
			for path := range files {
				if err := r.read(path); err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
			}
			return nil
		})
	}
	return workers.Wait()
}

// A packReader reads packs one after another.
type packReader struct {
	*packFloor
	hasher        *chunk.Hasher // nil: chunks are not hashed
	sealed, plain []byte
}

func (r *packReader) read(path string) error {
	id, err := hex.DecodeString(filepath.Base(path))
	if err != nil || len(id) != len(backup.PackID{}) {
		return fmt.Errorf("it does not have the name of a pack: %w", err)
	}
	if r.sealed, err = readInto(r.sealed, path); err != nil {
		return err
	}
	opened, err := pack.OpenBytes(r.sealed, r.repository, backup.PackID(id), r.opener)
	if err != nil {
		return err
	}
	for n, frame := range opened.Frames() {
		if frame.Removed {
			continue
		}
		plain, err := opened.DecodeFrame(r.plain[:0], uint32(n), r.sealed[frame.Offset:][:frame.SealedLength], r.hasher)
		if err != nil {
			return err
		}
		r.plain = plain
	}
	return nil
}

// readInto reads a file into the memory of b, if it is large enough.
func readInto(b []byte, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return b, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return b, err
	}
	if int64(cap(b)) < info.Size() {
		b = make([]byte, info.Size())
	}
	b = b[:info.Size()]
	_, err = f.ReadAt(b, 0)
	return b, err
}
