package entindex

import (
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
		Batches:  []backup.PagesToRead{{Pages: samplePages, Mounts: []string{"a"}}, {Pages: samplePages[:1]}},
		Children: []backup.Child{{Directories: []string{"c", "d"}, Mounts: []string{"c\xff", "d"}}, {Directories: []string{""}}},
		Counts:   backup.Counts{Files: 1, Directories: 2, Bytes: 3, FilesNew: 4, FilesChanged: 5, FilesUnchanged: 6, StatCalls: 7, NewBytes: 8, StoredBytes: 9, ReadBytes: 10, Errors: 11, Vanished: 12, Carried: 13, Torn: 14, WalkSeconds: 0.5, ReadSeconds: 1, HashSeconds: 2, CompressSeconds: 3, SealSeconds: 4, UploadSeconds: 5, CommitSeconds: 6},
		Problems: []backup.Problem{{Path: "p\x00", Op: "open", Err: "no"}},
		Run:      1<<64 - 1, Source: "posix:///srv?snapshot=x", Root: backup.Root{FileSystem: "ext4", ID: "a-b", Inode: 2, Born: backup.Time{Sec: -7, Nsec: 1}},
	}
)

func TestCodec(t *testing.T) {
	for _, want := range sampleSlice.Children {
		if child, err := decodeChild(encodeChild(&want)); err != nil || !reflect.DeepEqual(child, want) {
			t.Errorf("child %+v, %v; want %+v", child, err, want)
		}
	}
	for _, want := range sampleSlice.Batches {
		if batch, err := decodeToRead(encodeToRead(&want)); err != nil || !reflect.DeepEqual(batch, want) {
			t.Errorf("pages to read %+v, %v; want %+v", batch, err, want)
		}
	}
	slice, err := decodeSlice(encodeSlice(sampleSlice))
	if err != nil || !reflect.DeepEqual(slice, sampleSlice) {
		t.Errorf("slice %+v, %v; want %+v", slice, err, sampleSlice)
	}
	// All fields of Counts are encoded and summed.
	counts, fields := reflect.ValueOf(sampleSlice.Counts), len((&backup.Counts{}).Integers())+len((&backup.Counts{}).Seconds())
	if counts.NumField() != fields {
		t.Errorf("the codec has %d counts, backup.Counts %d", fields, counts.NumField())
	}
}

// A row that is truncated at any point is corrupt, and so is one with trailing bytes.
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
	f.Add(encodeToRead(&sampleSlice.Batches[0]))
	f.Add(encodeChild(&sampleSlice.Children[0]))
	f.Fuzz(func(t *testing.T, data []byte) {
		if slice, err := decodeSlice(data); err == nil {
			if again, err := decodeSlice(encodeSlice(slice)); err != nil || len(again.Pages) != len(slice.Pages) {
				t.Fatalf("decoded, encoded and decoded: %v", err)
			}
		}
		if batch, err := decodeToRead(data); err == nil {
			if again, err := decodeToRead(encodeToRead(&batch)); err != nil || !reflect.DeepEqual(again, batch) {
				t.Fatalf("pages to read decoded, encoded and decoded: %v", err)
			}
		}
		if child, err := decodeChild(data); err == nil {
			if again, err := decodeChild(encodeChild(&child)); err != nil || !reflect.DeepEqual(again, child) {
				t.Fatalf("child decoded, encoded and decoded: %v", err)
			}
		}
	})
}
