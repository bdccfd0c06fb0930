package listing

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// manyFiles is a page of n files, the contents of which are in chunks of their own.
func manyFiles(n int) *backup.Page {
	p := &backup.Page{}
	for i := range n {
		id := DirectoryID(fmt.Sprint(i)) // as random as a chunk's
		p.Entries = append(p.Entries, backup.Entry{
			Name: fmt.Sprintf("file%06d", i), Kind: backup.File, Mode: 0o644, Nlink: 1, Inode: uint64(1000 + i), Size: int64(binary.LittleEndian.Uint16(id[:])),
			Mtime: backup.Time{Sec: 1_700_000_000 + int64(i), Nsec: binary.LittleEndian.Uint32(id[4:]) % 1e9},
			Ctime: backup.Time{Sec: 1_700_000_000 + int64(i), Nsec: binary.LittleEndian.Uint32(id[8:]) % 1e9},
		})
		e := &p.Entries[i]
		e.Content.Refs = []backup.Ref{{Chunk: backup.ChunkID(id), Length: e.Size, Span: e.Size}}
	}
	return p
}

func plainOf(t testing.TB, p *backup.Page) []byte {
	t.Helper()
	data, err := Encode(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := Plain(data)
	if err != nil {
		t.Fatal(err)
	}
	return plain
}

func TestPlainIsTheSamePage(t *testing.T) {
	for name, p := range map[string]*backup.Page{"empty": {Entries: []backup.Entry{}}, "small": smallPage(), "every kind": everyKind(), "many files": manyFiles(200)} {
		plain := plainOf(t, p)
		got, err := Decode(plain)
		if err != nil || !reflect.DeepEqual(&got, p) || !IsPlain(plain) || IsPatch(plain) {
			t.Errorf("%s: plain listing is another page: %v", name, err)
		}
		if again, err := Plain(plain); err != nil || !bytes.Equal(again, plain) {
			t.Errorf("%s: its plain listing is another one: %v", name, err)
		}
	}
}

// One changed file of a hundred makes a patch of a few dozen bytes, and so does a new or a deleted
// one.
func TestPatchesAreSmall(t *testing.T) {
	base := plainOf(t, manyFiles(100))
	for name, change := range map[string]func(*backup.Page){
		"nothing": func(*backup.Page) {},
		"changed": func(p *backup.Page) {
			e := &p.Entries[50]
			e.Size, e.Mtime, e.Ctime = 77, backup.Time{Sec: 1_800_000_000, Nsec: 123_456_789}, backup.Time{Sec: 1_800_000_000, Nsec: 234_567_891}
			e.Content.Refs = []backup.Ref{{Chunk: backup.ChunkID(DirectoryID("other")), Length: 77, Span: 77}}
		},
		"deleted": func(p *backup.Page) { p.Entries = slices.Delete(p.Entries, 50, 51) },
		"all":     func(p *backup.Page) { *p = *everyKind() },
	} {
		p := manyFiles(100)
		change(p)
		listing := plainOf(t, p)
		patch := AppendPatch(nil, base, listing)
		got, err := Patched(base, patch)
		if err != nil || !bytes.Equal(got, listing) {
			t.Errorf("%s: a patch makes another listing: %v", name, err)
		}
		if name != "all" && len(patch) > 160 {
			t.Errorf("%s: the patch of a listing of %d bytes has %d", name, len(listing), len(patch))
		}
		if !IsPatch(patch) || IsPlain(patch) {
			t.Errorf("%s: the patch looks like a listing", name)
		}
	}
}

func TestPatchWithoutABase(t *testing.T) {
	listing := plainOf(t, manyFiles(100))
	patch := AppendPatch(nil, nil, listing)
	if got, err := Patched(nil, patch); err != nil || !bytes.Equal(got, listing) {
		t.Errorf("it makes another listing: %v", err)
	}
	if len(patch) > len(listing)*2/3 {
		t.Errorf("the patch of a listing of %d bytes has %d", len(listing), len(patch))
	}
}

func TestMalformedPatches(t *testing.T) {
	base := plainOf(t, manyFiles(100))
	other := plainOf(t, everyKind())
	good := AppendPatch(nil, base, other)
	long := AppendPatch(nil, nil, slices.Concat(other, make([]byte, MaxPatchedBytes)))
	for name, patch := range map[string][]byte{
		"nothing":             {},
		"version only":        {patchVersion},
		"a listing":           base,
		"version 3":           slices.Concat([]byte{3}, good[1:]),
		"no frame":            good[:3],
		"cut off":             good[:len(good)-1],
		"followed by more":    append(slices.Clone(good), 1),
		"followed by a frame": append(slices.Clone(good), good[3:]...),
		"another length":      slices.Concat([]byte{patchVersion, good[1] + 1}, good[2:]),
		"a length of 2^64-1":  slices.Concat([]byte{patchVersion}, number, good[3:]),
		"too long":            long,
		"longer than it says": slices.Concat([]byte{patchVersion, 1}, long[4:]),
		"makes no listing":    AppendPatch(nil, base, []byte{version, columnsZstd, 0, 0}),
		"makes a patch":       AppendPatch(nil, base, good),
	} {
		if got, err := Patched(base, patch); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if _, err := Patched(make([]byte, MaxPatchedBytes+1), good); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("a base that is too long: %v", err)
	}
	for _, base := range [][]byte{nil, {}, {1}, other, base[:len(base)-1]} {
		if got, err := Patched(base, good); err == nil && bytes.Equal(got, other) {
			t.Errorf("a base of %d bytes, of which it is no patch, makes the listing", len(base))
		}
	}
	for _, data := range malformed {
		if plain, err := Plain(data); err == nil && !IsPlain(plain) || err != nil && !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("plain listing of %x: %x, %v", data, plain, err)
		}
	}
}

// changedPage is secondPage after a file has changed and another one was removed.
func changedPage() *backup.Page {
	p := secondPage()
	e := &p.Entries[100]
	e.Size, e.Mtime.Sec, e.Ctime.Sec = 7, 1_800_000_000, 1_800_000_001
	e.Content = backup.Content{Refs: []backup.Ref{{Chunk: backup.ChunkID([]byte("chunk of changed")), Length: 7, Span: 7}}}
	p.Entries = slices.Delete(p.Entries, 200, 201)
	return p
}

// The golden patches make changedPage: one of second.listing, and one of nothing.
func TestGoldenPatches(t *testing.T) {
	base, err := Plain(golden(t, "second.listing", nil))
	if err != nil {
		t.Fatal(err)
	}
	for name, base := range map[string][]byte{"changed.patch": base, "whole.patch": nil} {
		want := plainOf(t, changedPage())
		got, err := Patched(base, golden(t, name, AppendPatch(nil, base, want)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s makes another listing: %v", name, err)
		}
	}
}

func FuzzPatched(f *testing.F) {
	base, other := plainOf(f, manyFiles(20)), plainOf(f, everyKind())
	f.Add(base, AppendPatch(nil, base, other))
	f.Add([]byte{}, AppendPatch(nil, nil, other))
	f.Fuzz(func(t *testing.T, base, data []byte) {
		listing, err := Patched(base, data)
		if err != nil && !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("error %v", err)
		}
		if err == nil && (len(listing) > MaxPatchedBytes || !IsPlain(listing)) {
			t.Errorf("%d bytes", len(listing))
		}
		// The data may be a base, and a listing, too.
		to := append([]byte{version, columnsPlain}, data...)
		if len(base) <= MaxPatchedBytes && len(to) <= MaxPatchedBytes {
			if got, err := Patched(base, AppendPatch(nil, base, to)); err != nil || !bytes.Equal(got, to) {
				t.Errorf("a patch of %d bytes to %d makes %d: %v", len(base), len(to), len(got), err)
			}
		}
		if _, err := Plain(data); err != nil && !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("plain: %v", err)
		}
	})
}
