package listing

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bctl/bctl/internal/backup"
)

func loadTree(root string) (pages []backup.Page) {
	filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		st := func(path string, name string) backup.Entry {
			var s unix.Statx_t
			unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_ALL, &s)
			e := backup.Entry{Name: name, Mode: uint32(s.Mode) & 07777, UID: s.Uid, GID: s.Gid, Nlink: s.Nlink, Inode: s.Ino, Device: 0x801,
				Mtime: backup.Time{s.Mtime.Sec, s.Mtime.Nsec}, Ctime: backup.Time{s.Ctime.Sec, s.Ctime.Nsec}, Btime: backup.Time{s.Btime.Sec, s.Btime.Nsec}}
			switch s.Mode & unix.S_IFMT {
			case unix.S_IFDIR:
				e.Kind = backup.Directory
				if name != "" {
					e = backup.Entry{Name: name, Kind: backup.Directory, Inode: s.Ino}
				}
			case unix.S_IFLNK:
				e.Kind = backup.Symlink
				e.Target, _ = os.Readlink(path)
			default:
				e.Kind = backup.File
				e.Size = int64(s.Size)
				if e.Size > 0 {
					r := backup.Ref{Length: e.Size, Span: e.Size}
					rand.Read(r.Chunk[:])
					e.Content.Refs = []backup.Ref{r}
				}
			}
			return e
		}
		self := st(p, "")
		pg := backup.Page{Path: p, Self: &self}
		des, _ := os.ReadDir(p)
		for _, de := range des {
			pg.Entries = append(pg.Entries, st(p+"/"+de.Name(), de.Name()))
		}
		Sort(pg.Entries)
		if len(pg.Entries) > 4000 { pg.Entries = pg.Entries[:1300] }
		if len(pg.Entries) > 1 {
			pages = append(pages, pg)
		}
		return nil
	})
	return
}

func TestExp(t *testing.T) {
	for _, root := range []string{"/tmp/gt_listing", "/usr/share/doc", "/root/go/pkg/mod/github.com", "/usr/lib", "/tmp/gt_huge"} {
		n, total, raw := 0, 0, 0
		var c Encoder
		for _, p := range loadTree(root) {
			out, err := c.Encode(nil, &p)
			if err != nil {
				t.Fatal(err)
			}
			n += len(p.Entries) + 1
			total += len(out)
			raw += len(c.body)
		}
		fmt.Printf("%-32s entries %7d bytes/entry %.2f raw %.2f\n", root, n, float64(total)/float64(n), float64(raw)/float64(n))
	}
}
