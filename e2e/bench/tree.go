//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
)

// A shape says what a tree looks like. The same shape and seed give the same
// tree, times included.
type shape struct {
	files, directories int
	bytes              int64   // of all files together
	sigma              float64 // of the log-normal distribution of sizes; 0: all the same
	textShare          float64 // of the files; the others' content is random
	seed               uint64
}

// presets are parts of a tree of 1,000,000 files with 4 GB, and one of large files.
var presets = map[string]shape{
	"million":   {files: 1_000_000, directories: 10_103, bytes: 4e9, sigma: 0.5},
	"million5":  {files: 200_000, directories: 2_020, bytes: 800e6, sigma: 0.5},
	"million20": {files: 50_000, directories: 505, bytes: 200e6, sigma: 0.5},
	"big":       {files: 8, directories: 2, bytes: 4e9},
	"tiny":      {files: 500, directories: 20, bytes: 2e6, sigma: 0.5},
}

// fanOut is how many subdirectories a directory has.
const fanOut = 20

// directoryName returns the path of the n-th directory below the root.
func directoryName(n int) string {
	if n == 0 {
		return "."
	}
	return filepath.Join(directoryName((n-1)/fanOut), fmt.Sprintf("part-%05d", n))
}

// make makes the tree in root, which must not be there.
func (s shape) make(root string) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	for d := 1; d < s.directories; d++ {
		if err := os.Mkdir(filepath.Join(root, directoryName(d)), 0o755); err != nil {
			return err
		}
	}
	sizes := s.sizes()
	var workers errgroup.Group
	n := runtime.NumCPU()
	for worker := range n {
		workers.Go(func() error {
			// A worker makes whole directories: inodes in the order of names.
			for d := worker; d < s.directories; d += n {
				for file := d; file < s.files; file += s.directories {
					if err := s.makeFile(root, d, file, sizes[file]); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	return workers.Wait()
}

// sizes returns the files' sizes, which come to s.bytes but for rounding.
func (s shape) sizes() []int64 {
	random := rand.New(rand.NewPCG(s.seed, 1))
	weights := make([]float64, s.files)
	total := 0.0
	for i := range weights {
		weights[i] = math.Exp(s.sigma * random.NormFloat64())
		total += weights[i]
	}
	sizes := make([]int64, s.files)
	for i, weight := range weights {
		sizes[i] = int64(weight / total * float64(s.bytes))
	}
	return sizes
}

// made is the mtime of the first file; each next is a second later.
var made = time.Date(2024, 1, 1, 0, 0, 0, 123_456_789, time.UTC)

func (s shape) makeFile(root string, directory, file int, size int64) error {
	random := rand.New(rand.NewPCG(s.seed+2, uint64(file)))
	kind, fill := "dat", fillRandom
	if random.Float64() < s.textShare {
		kind, fill = "txt", fillText
	}
	path := filepath.Join(root, directoryName(directory), fmt.Sprintf("file-%07d.%s", file, kind))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for size > 0 {
		piece := make([]byte, min(size, 1<<20))
		fill(random, piece)
		if _, err := f.Write(piece); err != nil {
			return err
		}
		size -= int64(len(piece))
	}
	if err := f.Close(); err != nil {
		return err
	}
	mtime := made.Add(time.Duration(file) * time.Second)
	return os.Chtimes(path, mtime, mtime)
}

func fillRandom(random *rand.Rand, p []byte) {
	for i := 0; i < len(p); i += 8 {
		word := random.Uint64()
		for k := i; k < min(i+8, len(p)); k++ {
			p[k] = byte(word)
			word >>= 8
		}
	}
}

// vocabulary is what text is made of; zstd halves and halves again what comes of it.
var vocabulary = func() [][]byte {
	random := rand.New(rand.NewPCG(7, 7))
	words := make([][]byte, 3000)
	for i := range words {
		word := make([]byte, 2+random.IntN(9), 12)
		for k := range word {
			word[k] = 'a' + byte(random.IntN(26))
		}
		words[i] = append(word, ' ')
	}
	return words
}()

// fillText writes words, the earlier ones of the vocabulary more often, and now and then a line's end.
func fillText(random *rand.Rand, p []byte) {
	for at := 0; at < len(p); {
		x := random.Float64()
		at += copy(p[at:], vocabulary[int(x*x*float64(len(vocabulary)))])
		if at < len(p) && random.IntN(12) == 0 {
			p[at] = '\n'
			at++
		}
	}
}

// churn changes a share of the tree's files and returns how many: of ten that
// it picks, seven grow, one is replaced, one moves, one goes.
func churn(root string, share float64, seed uint64) (int, error) {
	random := rand.New(rand.NewPCG(seed, 3))
	var picked []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && random.Float64() < share {
			picked = append(picked, path)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	for i, path := range picked {
		if err := change(random, path, i%10); err != nil {
			return i, err
		}
	}
	return len(picked), nil
}

func change(random *rand.Rand, path string, how int) error {
	text := make([]byte, 700)
	fillText(random, text)
	switch how {
	case 7:
		next := path + ".next"
		if err := os.WriteFile(next, bytes.Repeat(text, 5), 0o644); err != nil {
			return err
		}
		return os.Rename(next, path)
	case 8:
		return os.Rename(path, path+".moved")
	case 9:
		return os.Remove(path)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.Close()
}

// content counts a tree.
type content struct {
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Bytes       int64 `json:"bytes"`
}

func count(root string) (c content, err error) {
	err = filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			c.Directories++
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		c.Files++
		c.Bytes += info.Size()
		return nil
	})
	return c, err
}
