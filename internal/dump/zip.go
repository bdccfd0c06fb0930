package dump

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"io"
	"io/fs"
	"math"
	"time"

	"github.com/klauspost/compress/flate"

	"github.com/bctl/bctl/internal/backup"
)

// A zipArchive writes zip. Sizes and checksums follow the content of each file.
type zipArchive struct {
	buffer *bufio.Writer
	w      *zip.Writer
	file   io.Writer // to which content is written
}

func newZip(out io.Writer) *zipArchive {
	buffer := bufio.NewWriterSize(out, tarBufferBytes)
	w := zip.NewWriter(buffer)
	w.RegisterCompressor(zip.Deflate, func(out io.Writer) (io.WriteCloser, error) { return flate.NewWriter(out, flate.BestSpeed) })
	return &zipArchive{buffer: buffer, w: w}
}

// add implements archive. Links are copies.
func (z *zipArchive) add(path string, e *backup.Entry, _ string) (refused []refusal, err error) {
	h := &zip.FileHeader{Name: path, Method: zip.Deflate, Extra: unixOwner(e)}
	mode := fs.FileMode(e.Mode & 0o777)
	for _, bit := range []struct {
		posix uint32
		mode  fs.FileMode
	}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}} {
		if e.Mode&bit.posix != 0 {
			mode |= bit.mode
		}
	}
	switch e.Kind {
	case backup.File:
	case backup.Directory:
		if path == "" {
			return nil, nil // zip has no entry for the directory itself
		}
		h.Name, h.Method = path+"/", zip.Store
		mode |= fs.ModeDir
	case backup.Symlink:
		h.Method = zip.Store
		mode |= fs.ModeSymlink
	case backup.FIFO:
		return []refusal{{"fifos", true}}, nil
	case backup.Socket:
		return []refusal{{"sockets", true}}, nil
	default:
		return []refusal{{"devices", true}}, nil
	}
	h.SetMode(mode)
	if !setTime(h, e.Mtime.Time()) {
		refused = append(refused, refusal{"entries' times of modification", false})
	}
	if len(e.Xattrs) > 0 || e.XattrChunk.Length > 0 {
		refused = append(refused, refusal{"entries' extended attributes", false})
	}
	if z.file, err = z.w.CreateHeader(h); err == nil && e.Kind == backup.Symlink {
		_, err = io.WriteString(z.file, e.Target)
	}
	return refused, err
}

// setTime sets when an entry was modified. The fields of MS-DOS have the years 1980 to 2107, in
// steps of two seconds, and the extra field of Info-ZIP has seconds from 1970 to 2038. It reports
// whether one of them has the time. If none has, the entry has the nearest one.
func setTime(h *zip.FileHeader, t time.Time) bool {
	t = t.UTC()
	seconds := t.Unix()
	hasExtra := seconds >= 0 && seconds <= math.MaxInt32
	if hasExtra {
		h.Extra = append(h.Extra, 'U', 'T', 5, 0, 1)
		h.Extra = binary.LittleEndian.AppendUint32(h.Extra, uint32(seconds))
	}
	dos := t
	if t.Year() < 1980 {
		dos = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)
	} else if t.Year() > 2107 {
		dos = time.Date(2107, 12, 31, 23, 59, 58, 0, time.UTC)
	}
	h.ModifiedDate = uint16(dos.Day() + int(dos.Month())<<5 + (dos.Year()-1980)<<9) //nolint:staticcheck // Modified wraps around
	h.ModifiedTime = uint16(dos.Second()/2 + dos.Minute()<<5 + dos.Hour()<<11)      //nolint:staticcheck // Modified wraps around
	return hasExtra || dos.Equal(t)
}

// unixOwner returns the extra field with which Info-ZIP stores the numbers of owner and group.
func unixOwner(e *backup.Entry) []byte {
	b := []byte{'u', 'x', 11, 0, 1, 4}
	b = binary.LittleEndian.AppendUint32(b, e.UID)
	b = append(b, 4)
	return binary.LittleEndian.AppendUint32(b, e.GID)
}

func (z *zipArchive) Write(data []byte) (int, error) { return z.file.Write(data) }

func (z *zipArchive) close() error {
	if err := z.w.Close(); err != nil {
		return err
	}
	return z.buffer.Flush()
}
