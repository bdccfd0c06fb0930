//go:build linux

package main

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// floorPacks reads all files below a directory, and decrypts as many bytes in frames: the least
// work of a check of all content. The bytes that it decrypts are its own, because it has no
// identity.
func floorPacks(directory string) error {
	files := make(chan string)
	var workers errgroup.Group
	workers.Go(func() error {
		defer close(files)
		return filepath.WalkDir(directory, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				files <- path
			}
			return err
		})
	})
	for range runtime.NumCPU() {
		workers.Go(func() error {
			var failed error
			u, err := newUnsealer()
			for path := range files { // also after an error: somebody sends them
				if failed == nil && err == nil {
					failed = u.file(path)
				}
			}
			if err != nil {
				return err
			}
			return failed
		})
	}
	return workers.Wait()
}

// An unsealer decrypts one sealed frame again and again.
type unsealer struct {
	aead          cipher.AEAD
	nonce         []byte
	sealed, plain []byte
	content       bytes.Buffer
}

func newUnsealer() (*unsealer, error) {
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	u := &unsealer{aead: aead, nonce: make([]byte, aead.NonceSize())}
	u.sealed = aead.Seal(nil, u.nonce, make([]byte, floorFrameBytes), nil)
	return u, nil
}

// file reads a file, and decrypts as many bytes.
func (u *unsealer) file(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	u.content.Reset()
	n, err := u.content.ReadFrom(f)
	if err != nil {
		return err
	}
	for ; n > 0; n -= floorFrameBytes {
		if u.plain, err = u.aead.Open(u.plain[:0], u.nonce, u.sealed, nil); err != nil {
			return fmt.Errorf("decrypt: %w", err)
		}
	}
	return nil
}
