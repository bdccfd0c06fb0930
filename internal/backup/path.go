package backup

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Path keys. A directory's path key is its path with each component followed by a NUL: the key of
// "usr/bin" is "usr\x00bin\x00", and that of the root is empty. The bytewise order of path keys is
// the order of a top-down walk, and the keys of a directory and everything below it are exactly
// those that begin with the directory's own.

// PathKey returns the path key of path.
func PathKey(path string) []byte {
	if path == "" {
		return []byte{}
	}
	key := make([]byte, len(path)+1)
	copy(key, path)
	for i, c := range key[:len(path)] {
		if c == '/' {
			key[i] = 0
		}
	}
	return key
}

// PathOfKey returns the path whose path key is key.
func PathOfKey(key []byte) (string, error) {
	if len(key) == 0 {
		return "", nil
	}
	if key[len(key)-1] != 0 || key[0] == 0 || bytes.IndexByte(key, '/') >= 0 || bytes.Contains(key, []byte{0, 0}) {
		return "", fmt.Errorf("path key %q: %w", key, ErrCorrupt)
	}
	return string(bytes.ReplaceAll(key[:len(key)-1], []byte{0}, []byte{'/'})), nil
}

// PathKeyEnd returns the first path key after path and everything below it. For the root it returns
// nil, which means that there is no end.
func PathKeyEnd(path string) []byte {
	if path == "" {
		return nil
	}
	key := PathKey(path)
	key[len(key)-1] = 1
	return key
}

// Join returns the path of name in the directory dir.
func Join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// Split is the inverse of Join: it returns the directory of a path and the name within it.
func Split(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return "", path
	}
	return path[:i], path[i+1:]
}

// IsAtOrBelow reports whether path is of, or leads below it. of is not the root.
func IsAtOrBelow(path, of string) bool {
	rest, ok := strings.CutPrefix(path, of)
	return ok && (rest == "" || rest[0] == '/')
}

// IsBelow reports whether path is below dir, which may be the root.
func IsBelow(path, dir string) bool { return dir == "" || strings.HasPrefix(path, dir+"/") }

// RawBase64 returns a name or path in base64 if JSON cannot represent it, otherwise "".
func RawBase64(s string) string {
	if utf8.ValidString(s) {
		return ""
	}
	return base64.StdEncoding.EncodeToString([]byte(s))
}

// MaxEntryNameBytes is the length of the longest name of an entry: 255 characters of up to 4 bytes.
// No file system allows more.
const MaxEntryNameBytes = 4 * 255

// CheckName returns an error that wraps ErrInvalid unless name can be the name of an entry: not
// empty, not "." or "..", without '/' and NUL, and at most MaxEntryNameBytes long.
func CheckName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > MaxEntryNameBytes || strings.IndexByte(name, '/') >= 0 || strings.IndexByte(name, 0) >= 0 {
		return fmt.Errorf("name %q: %w", name, ErrInvalid)
	}
	return nil
}

// MaxPathBytes is the maximum length of a path within a shard.
const MaxPathBytes = 64 << 10

// CheckPath returns an error that wraps ErrInvalid unless path can be a path
// within a shard: names joined by single slashes, or empty for the root.
func CheckPath(path string) error {
	if path == "" {
		return nil
	}
	if len(path) > MaxPathBytes {
		return fmt.Errorf("path of %d bytes: %w", len(path), ErrInvalid)
	}
	for name := range strings.SplitSeq(path, "/") {
		if err := CheckName(name); err != nil {
			return fmt.Errorf("path %q: %w", path, err)
		}
	}
	return nil
}
