package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

func testPutGet(t *testing.T, s store.Store) {
	for _, name := range []string{
		"repository",
		"packs/0123/4567",
		store.PackName(backup.NewSnapshotID(), backup.NewPackID()),
		store.SegmentName(backup.NewSnapshotID(), backup.NewPackID(), 999999),
		"keys/A.b-c_D",
		"keys/" + strings.Repeat("n", 200),
		"a/b/c/d/e/f/g/h",
		"..hidden/.dots..",
	} {
		data := content(1000+len(name), 2)
		put(t, s, name, data)
		wantContent(t, s, name, data)
		if got, err := s.Stat(t.Context(), name); err != nil || got != int64(len(data)) {
			t.Errorf("stat %s: %d, %v; want %d", name, got, err, len(data))
		}
	}
}

func testEmpty(t *testing.T, s store.Store) {
	put(t, s, "packs/one/empty", nil)
	wantContent(t, s, "packs/one/empty", nil)
	got, err := s.GetRange(t.Context(), []byte("kept"), "packs/one/empty", 0, 0)
	if err != nil || string(got) != "kept" {
		t.Errorf("no bytes from 0: %q, %v", got, err)
	}
}

func testPutAgain(t *testing.T, s store.Store) {
	data := content(5000, 3)
	put(t, s, "packs/one/object", data)
	put(t, s, "packs/one/object", data)
	wantContent(t, s, "packs/one/object", data)
}

func testBuffer(t *testing.T, s store.Store) {
	data := content(1<<20, 4)
	put(t, s, "object", data)
	want := bytes.Clone(data)
	clear(data)
	wantContent(t, s, "object", want)
}

func testLarge(t *testing.T, s store.Store) {
	data := content(40<<20, 5)
	put(t, s, "packs/one/large", data)
	wantContent(t, s, "packs/one/large", data)
	got, err := s.GetRange(t.Context(), nil, "packs/one/large", 17<<20, 5<<20)
	if err != nil || !bytes.Equal(got, data[17<<20:22<<20]) {
		t.Errorf("from the middle: %d bytes, %v", len(got), err)
	}
}

func testNames(t *testing.T, s store.Store) {
	for _, name := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/..",
		"a b", "a\x00b", "a\nb", "a\\b", "a~b", "ä", "a:b", "a?b", "a%2fb", "a#b", "*",
		strings.Repeat("a", 256), strings.Repeat("a/", 300) + "a",
	} {
		wantError(t, s, s.Put(t.Context(), name, []byte("x")), backup.ErrInvalid, name)
		wantError(t, s, s.PutNew(t.Context(), name, []byte("x")), backup.ErrInvalid, name)
		wantError(t, s, s.Delete(t.Context(), name), backup.ErrInvalid, name)
		_, err := s.Get(t.Context(), name, 10)
		wantError(t, s, err, backup.ErrInvalid, name)
		_, err = s.GetRange(t.Context(), nil, name, 0, 1)
		wantError(t, s, err, backup.ErrInvalid, name)
		_, err = s.Stat(t.Context(), name)
		wantError(t, s, err, backup.ErrInvalid, name)
	}
	for _, prefix := range []string{"/", "../", "a/../", "a//", "*", "a b"} {
		seen := 0
		for _, err := range s.List(t.Context(), prefix) {
			wantError(t, s, err, backup.ErrInvalid, prefix)
			seen++
		}
		if seen != 1 {
			t.Errorf("list %q yields %d times, not one error", prefix, seen)
		}
	}
}

func testPutNew(t *testing.T, s store.Store) {
	data := content(5000, 6)
	if err := s.PutNew(t.Context(), "repository", data); err != nil {
		t.Fatal(err)
	}
	wantError(t, s, s.PutNew(t.Context(), "repository", []byte("other")), backup.ErrExists, "repository")
	wantError(t, s, s.PutNew(t.Context(), "repository", data), backup.ErrExists, "repository")
	wantContent(t, s, "repository", data)
}

func testDelete(t *testing.T, s store.Store) {
	put(t, s, "packs/one/a", []byte("a"))
	put(t, s, "packs/one/b", []byte("b"))
	for range 2 {
		if err := s.Delete(t.Context(), "packs/one/a"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"nothing", "packs/none/at/all", "packs", "packs/one", "packs/one/b/below"} {
		if err := s.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	_, err := s.Stat(t.Context(), "packs/one/a")
	wantError(t, s, err, backup.ErrNotFound, "packs/one/a")
	wantContent(t, s, "packs/one/b", []byte("b"))

	if err := s.Delete(t.Context(), "packs/one/b"); err != nil {
		t.Fatal(err)
	}
	put(t, s, "packs/one/c", []byte("c")) // new objects fit where all were deleted
	wantContent(t, s, "packs/one/c", []byte("c"))
	if err := s.PutNew(t.Context(), "packs/one/a", []byte("again")); err != nil {
		t.Error(err)
	}
}

// Delete takes many names, more than one request of S3 can, and missing ones among them. It deletes
// nothing if one of the names is invalid.
func testDeleteMany(t *testing.T, s store.Store) {
	put(t, s, "packs/one/kept", []byte("kept"))
	if err := s.Delete(t.Context()); err != nil {
		t.Errorf("no names: %v", err)
	}
	var stored, all []string
	for i := range 2500 {
		name := fmt.Sprintf("packs/%d/%d", i%7, i)
		if i%250 == 0 {
			stored = append(stored, name)
			put(t, s, name, []byte("x"))
		}
		all = append(all, name)
	}
	wantError(t, s, s.Delete(t.Context(), append(stored[:len(stored):len(stored)], "a//b")...), backup.ErrInvalid, "a//b")
	for _, name := range stored {
		wantContent(t, s, name, []byte("x"))
	}
	for range 2 {
		if err := s.Delete(t.Context(), all...); err != nil {
			t.Fatal(err)
		}
		if left := names(t.Context(), t, s, ""); len(left) != 1 || left["packs/one/kept"] == 0 {
			t.Fatalf("left: %v", left)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, s, s.Delete(ctx, "packs/one/kept", "packs/one/other"), context.Canceled, "packs/one/kept")
	wantContent(t, s, "packs/one/kept", []byte("kept"))
}

func testConcurrentNames(t *testing.T, s store.Store) {
	group, ctx := errgroup.WithContext(t.Context())
	for i := range 16 {
		group.Go(func() error {
			for j := range 4 {
				name := fmt.Sprintf("packs/%d/%d-%d", j, i, j)
				if err := s.Put(ctx, name, content(10_000+i, uint64(i*4+j))); err != nil {
					return err
				}
				got, err := s.Get(ctx, name, 1<<20)
				if err != nil {
					return err
				}
				if !bytes.Equal(got, content(10_000+i, uint64(i*4+j))) {
					return fmt.Errorf("%s has other content", name)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := names(t.Context(), t, s, "packs/"); len(got) != 64 {
		t.Errorf("%d objects, want 64", len(got))
	}
}

func testConcurrentSame(t *testing.T, s store.Store) {
	data := content(300_000, 7)
	var group errgroup.Group
	for range 8 {
		group.Go(func() error { return s.Put(t.Context(), "packs/one/same", data) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	wantContent(t, s, "packs/one/same", data)
}

func testConcurrentNew(t *testing.T, s store.Store) {
	const rivals = 8
	var (
		mu      sync.Mutex
		winners []byte
		group   errgroup.Group
	)
	for i := range byte(rivals) {
		group.Go(func() error {
			err := s.PutNew(t.Context(), "repository", bytes.Repeat([]byte{i}, 1000))
			if errors.Is(err, backup.ErrExists) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			winners = append(winners, i)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(winners) != 1 {
		t.Fatalf("%d winners: %v", len(winners), winners)
	}
	wantContent(t, s, "repository", bytes.Repeat(winners[:1], 1000))
}

func testAtomic(t *testing.T, s store.Store) {
	data := content(8<<20, 8)
	stop := make(chan struct{})
	var group errgroup.Group
	group.Go(func() error {
		for {
			got, err := s.Get(t.Context(), "packs/one/object", 1<<30)
			switch {
			case err != nil && !errors.Is(err, backup.ErrNotFound):
				return err
			case err == nil && !bytes.Equal(got, data):
				return fmt.Errorf("saw %d bytes that are not the %d that were put", len(got), len(data))
			}
			select {
			case <-stop:
				return nil
			default:
			}
		}
	})
	for range 3 {
		put(t, s, "packs/one/object", data)
	}
	close(stop)
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func testContext(t *testing.T, s store.Store) {
	put(t, s, "packs/one/object", []byte("x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, s, s.Put(ctx, "packs/one/other", []byte("x")), context.Canceled, "other")
	wantError(t, s, s.PutNew(ctx, "packs/one/other", []byte("x")), context.Canceled, "other")
	wantError(t, s, s.Delete(ctx, "packs/one/object"), context.Canceled, "object")
	_, err := s.Get(ctx, "packs/one/object", 10)
	wantError(t, s, err, context.Canceled, "object")
	_, err = s.GetRange(ctx, nil, "packs/one/object", 0, 1)
	wantError(t, s, err, context.Canceled, "object")
	_, err = s.Stat(ctx, "packs/one/object")
	wantError(t, s, err, context.Canceled, "object")
	err = nil
	for _, e := range s.List(ctx, "packs/") {
		err = e
	}
	wantError(t, s, err, context.Canceled, "packs/")
	wantContent(t, s, "packs/one/object", []byte("x"))
	if got := names(t.Context(), t, s, ""); len(got) != 1 {
		t.Errorf("canceled puts left %v", got)
	}
}
