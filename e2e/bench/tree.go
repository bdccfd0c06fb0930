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
	"sync/atomic"
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

// A preset is a shape for which slow backups were reported.
type preset struct {
	shape
	steps []step // that are worth measuring on it
}

var presets = map[string]preset{
	// The tree on which restic's second pass was measured, and parts of it.
	"million":   {shape{files: 1_000_000, directories: 10_103, bytes: 4e9, sigma: 0.5}, []step{first, unchanged, churned}},
	"million5":  {shape{files: 200_000, directories: 2_020, bytes: 800e6, sigma: 0.5}, steps},
	"million20": {shape{files: 50_000, directories: 505, bytes: 200e6, sigma: 0.5}, steps},
	// Few large files.
	"big": {shape{files: 8, directories: 2, bytes: 4e9}, []step{first, restore}},
	// The tree of Obnam's page on tuning.
	"obnam": {shape{files: 155_000, directories: 12_000, bytes: 3_930_000_000, sigma: 1.2}, []step{first, unchanged}},
	// The tree of Conserve's journal.
	"conserve": {shape{files: 1_020, directories: 410, bytes: 443e6, sigma: 1.6}, []step{first, unchanged, restore}},
	// Every file in one directory.
	"hugedir": {shape{files: 300_000, directories: 1, bytes: 300e6, sigma: 0.3}, []step{first, unchanged}},
	"tiny":    {shape{files: 500, directories: 20, bytes: 2e6, sigma: 0.5}, steps},
}

// textShare is the share of text in the files of the presets.
const textShare = 0.7

// fanOut is how many subdirectories a directory has.
const fanOut = 32

// directoryName returns the path of the n-th directory below the root.
func directoryName(n int) string {
	if n == 0 {
		return "."
	}
	return filepath.Join(directoryName((n-1)/fanOut), fmt.Sprintf("d%05d", n))
}

// make makes the tree in root, which must not be there.
func (s shape) make(root string) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	names := make([]string, s.directories)
	for d := range names {
		names[d] = filepath.Join(root, directoryName(d))
		if d > 0 {
			if err := os.Mkdir(names[d], 0o755); err != nil {
				return err
			}
		}
	}
	sizes := s.sizes()
	var workers errgroup.Group
	var next atomic.Int64
	for range 2 * runtime.NumCPU() {
		workers.Go(func() error {
			piece := make([]byte, 1<<20)
			for {
				file := int(next.Add(1)) - 1
				if file >= s.files {
					return nil
				}
				if err := s.makeFile(names[file%s.directories], file, sizes[file], piece); err != nil {
					return err
				}
			}
		})
	}
	return workers.Wait()
}

// sizes returns the sizes of the files. Their sum is s.bytes, except for rounding.
func (s shape) sizes() []int64 {
	random := rand.New(rand.NewPCG(s.seed, 0))
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

// made is the mtime of the first file. Each following file is one second later.
var made = time.Unix(1_700_000_000, 0)

func (s shape) makeFile(directory string, file int, size int64, piece []byte) error {
	random := rand.New(rand.NewPCG(s.seed, uint64(file)+1))
	kind, fill := "bin", fillRandom
	if random.Float64() < s.textShare {
		kind, fill = "txt", fillText
	}
	path := filepath.Join(directory, fmt.Sprintf("f%07d.%s", file, kind))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for size > 0 {
		part := piece[:min(size, int64(len(piece)))]
		fill(random, part)
		if _, err := f.Write(part); err != nil {
			return err
		}
		size -= int64(len(part))
	}
	if err := f.Close(); err != nil {
		return err
	}
	mtime := made.Add(time.Duration(file)*time.Second + time.Duration(file%1000)*time.Millisecond)
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

// vocabulary has the words of the text. zstd compresses the text to about a third.
var vocabulary = func() (words [4096]string) {
	random := rand.New(rand.NewPCG(42, 42))
	for i := range words {
		word := make([]byte, 3+random.IntN(8))
		for k := range word {
			word[k] = byte('a' + random.IntN(26))
		}
		words[i] = string(word) + " "
	}
	return words
}()

// fillText writes words, the earlier ones of the vocabulary more often.
func fillText(random *rand.Rand, p []byte) {
	for len(p) > 0 {
		value := random.Uint64()
		for range 4 {
			x := value & 0xffff
			p = p[copy(p, vocabulary[(x*x)>>20]):]
			value >>= 16
		}
	}
}

// churn changes a share of the tree's files, and returns their number. Of ten files that it picks,
// seven grow, one is replaced, one is moved, and one is removed.
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
