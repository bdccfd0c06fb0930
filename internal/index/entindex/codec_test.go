package entindex

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

var (
	samplePages = []backup.PageVersion{
		{Path: "", Fingerprint: backup.Fingerprint{1}, Inode: 1<<64 - 1, Listing: []byte("root")},
		{Path: "a/\xff\x01", Key: 1<<63 - 1, Listing: []byte{}},
	}
	sampleSlice = &backup.SliceWalked{
		Pages: samplePages, Ended: []backup.PageName{{Path: "gone", Key: 3}}, Removed: []string{"x", "y\xfe"},
		Batches: [][]backup.PageVersion{samplePages, samplePages[:1]}, Children: [][]string{{"c", "d"}, {""}},
		Counts:   backup.Counts{Files: 1, Directories: 2, Bytes: 3, FilesNew: 4, FilesChanged: 5, FilesUnchanged: 6, StatCalls: 7, NewBytes: 8, StoredBytes: 9, ReadBytes: 10, Errors: 11, WalkSeconds: 0.5, ReadSeconds: 1, HashSeconds: 2, CompressSeconds: 3, SealSeconds: 4, UploadSeconds: 5, CommitSeconds: 6},
		Problems: []backup.Problem{{Path: "p\x00", Op: "open", Err: "no"}},
	}
)

func TestCodec(t *testing.T) {
	directories, err := decodeDirectories(encodeDirectories([]string{"", "a/b", "c\xff"}))
	if err != nil || !reflect.DeepEqual(directories, []string{"", "a/b", "c\xff"}) {
		t.Errorf("directories %q, %v", directories, err)
	}
	pages, err := decodePages(encodePages(samplePages))
	if err != nil || !reflect.DeepEqual(pages, samplePages) {
		t.Errorf("pages %+v, %v", pages, err)
	}
	slice, err := decodeSlice(encodeSlice(sampleSlice))
	if err != nil || !reflect.DeepEqual(slice, sampleSlice) {
		t.Errorf("slice %+v, %v; want %+v", slice, err, sampleSlice)
	}
	// All of what a count has is carried and summed.
	counts, fields := reflect.ValueOf(sampleSlice.Counts), len(countsIntegers(&backup.Counts{}))+len(countsSeconds(&backup.Counts{}))
	if counts.NumField() != fields {
		t.Errorf("the codec has %d counts, backup.Counts %d", fields, counts.NumField())
	}
}

// A row that is cut off anywhere is corrupt, and so is one with more.
func TestCodecDamage(t *testing.T) {
	whole := encodeSlice(sampleSlice)
	for n := range whole {
		if _, err := decodeSlice(whole[:n]); !errors.Is(err, backup.ErrCorrupt) {
			t.Fatalf("the first %d of %d bytes: %v", n, len(whole), err)
		}
	}
	for _, bad := range [][]byte{append(whole, 0), {2}, {codecVersion, 0xff, 0xff, 0xff, 0xff, 0x7f}} {
		if _, err := decodeSlice(bad); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%.20x: %v", bad, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encodeSlice(sampleSlice))
	f.Add(encodePages(samplePages))
	f.Add(encodeDirectories([]string{"a", ""}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if slice, err := decodeSlice(data); err == nil {
			if again, err := decodeSlice(encodeSlice(slice)); err != nil || len(again.Pages) != len(slice.Pages) {
				t.Fatalf("decoded, encoded and decoded: %v", err)
			}
		}
		if pages, err := decodePages(data); err == nil {
			if again, err := decodePages(encodePages(pages)); err != nil || !reflect.DeepEqual(again, pages) {
				t.Fatalf("pages decoded, encoded and decoded: %v", err)
			}
		}
		if list, err := decodeDirectories(data); err == nil && !bytes.Equal(encodeDirectories(list)[:1], data[:1]) {
			t.Fatal("another version")
		}
	})
}
