//go:build linux

package main

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// The floor is the least work of such a backup. Each entry is listed, and its attributes are read,
// once. To store the tree, each file is opened, read, hashed, compressed in frames, sealed and
// written to one file. The floor has no index, does not look for duplicates, and remembers nothing
// of what it has read.
const (
	floorFrameBytes = 512 << 10
	floorPackBytes  = 32 << 20
	// sharedDirectories wait for any worker; those beyond, for the worker that found them.
	sharedDirectories = 1 << 10
)

// runFloor does the work that mode names: "walk", "store:FILE" at the fastest level of zstd,
// "store-2:FILE" at another one, 1 to 4, "packs", which reads, decrypts and
// decompresses the packs of a repository, or "content", which also hashes their chunks.
func runFloor(mode, tree string) error {
	if mode == "packs" || mode == "content" {
		return floorPacks(tree, mode == "content")
	}
	f := &floor{work: make(chan string, sharedDirectories), level: zstd.SpeedFastest}
	kind, path, _ := strings.Cut(mode, ":")
	if level, ok := strings.CutPrefix(kind, "store-"); ok {
		n, err := strconv.Atoi(level)
		if err != nil || n < 1 || n > 4 {
			return fmt.Errorf("-floor %s: the level is not 1 to 4", mode)
		}
		kind, f.level = "store", zstd.EncoderLevel(n)
	}
	switch {
	case kind == "store" && path != "":
		out, err := os.Create(path)
		if err != nil {
			return err
		}
		f.out = out
	case mode != "walk":
		return fmt.Errorf("-floor %s is not walk, store:FILE, store-LEVEL:FILE, packs or content", mode)
	}
	f.open.Add(1)
	f.work <- tree
	go func() { // ends with the last directory, on which every worker waits
		f.open.Wait()
		close(f.work)
	}()
	var workers errgroup.Group
	for range runtime.NumCPU() {
		workers.Go(f.worker)
	}
	if err := workers.Wait(); err != nil || f.out == nil {
		return err
	}
	return errors.Join(f.out.Sync(), f.out.Close())
}

type floor struct {
	work  chan string    // directories to walk
	open  sync.WaitGroup // directories that are not walked yet
	level zstd.EncoderLevel

	mutex sync.Mutex // of out
	out   *os.File   // nil: only walk
}

// A floorWorker has what one goroutine works with.
type floorWorker struct {
	floor   *floor
	own     []string // directories to walk, beside those that are shared
	entries []byte   // as getdents gives them
	digest  *blake3.Hasher
	frame   []byte // content that is not compressed yet
	body    []byte
	pack    []byte // what is sealed, and not written yet
	encoder *zstd.Encoder
	aead    cipher.AEAD
	counter uint64
}

func (f *floor) worker() error {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(f.level), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20))
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		return err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return err
	}
	w := &floorWorker{
		floor: f, encoder: encoder, aead: aead, digest: blake3.New(),
		entries: make([]byte, 128<<10), frame: make([]byte, 0, 2*floorFrameBytes),
	}
	var failed error
	walk := func(dir string) {
		if failed == nil { // and else only count: somebody waits for it
			failed = w.directory(dir)
		}
		f.open.Done()
	}
	for dir := range f.work {
		walk(dir)
		for len(w.own) > 0 {
			last := len(w.own) - 1
			dir, w.own = w.own[last], w.own[:last]
			select {
			case f.work <- dir: // there is room again
			default:
				walk(dir)
			}
		}
	}
	if failed == nil && f.out != nil {
		w.seal()
		failed = w.flush()
	}
	return failed
}

// later leaves a directory to another worker, or else to a later step of this one.
func (w *floorWorker) later(dir string) {
	w.floor.open.Add(1)
	select {
	case w.floor.work <- dir:
	default:
		w.own = append(w.own, dir)
	}
}

func (w *floorWorker) directory(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	w.digest.Reset()
	for {
		n, err := unix.Getdents(fd, w.entries)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if n == 0 {
			var sum [16]byte
			_, err = w.digest.Digest().Read(sum[:])
			return err
		}
		for rest := w.entries[:n]; len(rest) > 0; {
			length := binary.NativeEndian.Uint16(rest[16:])
			if err := w.entry(fd, path, unix.ByteSliceToString(rest[19:length])); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			rest = rest[length:]
		}
	}
}

func (w *floorWorker) entry(fd int, dir, name string) error {
	if name == "." || name == ".." {
		return nil
	}
	var st unix.Statx_t
	if err := unix.Statx(fd, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st); err != nil {
		return err
	}
	record := append(make([]byte, 0, 320), name...)
	for _, value := range []uint64{st.Size, st.Ino, uint64(st.Mtime.Sec), uint64(st.Mtime.Nsec), uint64(st.Ctime.Sec), uint64(st.Ctime.Nsec)} {
		record = binary.LittleEndian.AppendUint64(record, value)
	}
	w.digest.Write(record)
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		w.later(filepath.Join(dir, name))
	case st.Mode&unix.S_IFMT == unix.S_IFREG && w.floor.out != nil:
		return w.file(fd, name)
	}
	return nil
}

// file reads a file into frames.
func (w *floorWorker) file(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		had := len(w.frame)
		n, err := unix.Read(fd, w.frame[had:cap(w.frame)])
		if err != nil || n == 0 {
			return err
		}
		w.frame = w.frame[:had+n]
		_ = blake3.Sum256(w.frame[had:])
		if len(w.frame) >= floorFrameBytes {
			w.seal()
			if len(w.pack) < floorPackBytes {
				continue
			}
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
}

// seal compresses and seals the frame.
func (w *floorWorker) seal() {
	if len(w.frame) == 0 {
		return
	}
	w.body = w.encoder.EncodeAll(w.frame, w.body[:0])
	body := w.body
	if len(body) > len(w.frame)-len(w.frame)/32 {
		body = w.frame
	}
	var nonce [12]byte
	w.counter++
	binary.BigEndian.PutUint64(nonce[4:], w.counter)
	w.pack = w.aead.Seal(w.pack, nonce[:], body, nil)
	w.frame = w.frame[:0]
}

// flush writes what is sealed.
func (w *floorWorker) flush() error {
	w.floor.mutex.Lock()
	defer w.floor.mutex.Unlock()
	_, err := w.floor.out.Write(w.pack)
	w.pack = w.pack[:0]
	return err
}
