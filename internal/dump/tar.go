package dump

import (
	"archive/tar"
	"bufio"
	"io"
	"strings"

	"github.com/bctl/bctl/internal/backup"
)

// tarBufferBytes is the size of writes to the stream.
const tarBufferBytes = 256 << 10

// The pax records in which GNU tar, star and bsdtar have extended attributes and ACLs.
const (
	paxXattr      = "SCHILY.xattr."
	paxACL        = "SCHILY.acl.access"
	paxDefaultACL = "SCHILY.acl.default"
)

// xattrNames writes names of extended attributes as GNU tar does: a key of pax ends at the first =.
var xattrNames = strings.NewReplacer("%", "%25", "=", "%3D")

// A tarArchive writes tar in the pax format.
type tarArchive struct {
	o      *Options
	buffer *bufio.Writer
	w      *tar.Writer
}

func newTar(out io.Writer, o *Options) *tarArchive {
	buffer := bufio.NewWriterSize(out, tarBufferBytes)
	return &tarArchive{o, buffer, tar.NewWriter(buffer)}
}

// tarTypes are the types of entries. Tar has no sockets.
var tarTypes = map[backup.Kind]byte{
	backup.File: tar.TypeReg, backup.Directory: tar.TypeDir, backup.Symlink: tar.TypeSymlink,
	backup.FIFO: tar.TypeFifo, backup.CharDev: tar.TypeChar, backup.BlockDev: tar.TypeBlock,
}

func (t *tarArchive) add(path string, e *backup.Entry, link string) (refused []refusal, err error) {
	kind, ok := tarTypes[e.Kind]
	if !ok {
		return []refusal{{"sockets", true}}, nil
	}
	h := &tar.Header{
		Format: tar.FormatPAX, Typeflag: kind, Name: path, Linkname: e.Target, Mode: int64(e.Mode), ModTime: e.Mtime.Time(),
		Uid: int(e.UID), Gid: int(e.GID), Uname: t.name(t.o.User, e.UID), Gname: t.name(t.o.Group, e.GID),
		PAXRecords: map[string]string{},
	}
	switch {
	case link != "":
		h.Typeflag, h.Linkname = tar.TypeLink, link
		return nil, t.w.WriteHeader(h)
	case e.Kind == backup.Directory:
		h.Name = strings.TrimPrefix(path+"/", "/")
		if path == "" {
			h.Name = "./"
		}
	case e.Kind == backup.File:
		h.Size = e.Size
	case e.Kind == backup.CharDev || e.Kind == backup.BlockDev:
		h.Devmajor, h.Devminor = int64(e.Major()), int64(e.Minor())
	}
	refused = t.xattrs(h, e)
	return refused, t.w.WriteHeader(h)
}

func (t *tarArchive) name(of func(uint32) string, id uint32) string {
	if of == nil {
		return ""
	}
	return of(id)
}

// xattrs adds the records of the extended attributes.
func (t *tarArchive) xattrs(h *tar.Header, e *backup.Entry) (refused []refusal) {
	for i := range e.Xattrs {
		x := &e.Xattrs[i]
		record, text := paxXattr+xattrNames.Replace(x.Name), string(x.Value)
		var err error
		switch x.Name {
		case "system.posix_acl_access":
			record = paxACL
			text, err = aclText(x.Value)
		case "system.posix_acl_default":
			record = paxDefaultACL
			text, err = aclText(x.Value)
		}
		if err != nil || x.Name == "" || strings.Contains(x.Name, "\x00") { // pax has no place for such a name
			refused = append(refused, refusal{"extended attributes", false})
			continue
		}
		h.PAXRecords[record] = text
	}
	return refused
}

func (t *tarArchive) Write(data []byte) (int, error) { return t.w.Write(data) }

func (t *tarArchive) close() error {
	if err := t.w.Close(); err != nil {
		return err
	}
	return t.buffer.Flush()
}
