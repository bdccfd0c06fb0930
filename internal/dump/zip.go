package dump

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"io"
	"io/fs"

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
	h := &zip.FileHeader{Name: path, Method: zip.Deflate, Modified: e.Mtime.Time(), Extra: unixOwner(e)}
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
	if len(e.Xattrs) > 0 || e.XattrChunk.Length > 0 {
		refused = append(refused, refusal{"entries' extended attributes", false})
	}
	if z.file, err = z.w.CreateHeader(h); err == nil && e.Kind == backup.Symlink {
		_, err = io.WriteString(z.file, e.Target)
	}
	return refused, err
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
