package dirstore

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
)

// failOnce makes the next call of one operation fail with EIO, before or after it is carried out.
func failOnce(s *Store, operation string, applied bool) {
	failed := false
	around := func(do func() error) error {
		if failed {
			return do()
		}
		failed = true
		if applied {
			if err := do(); err != nil {
				return err
			}
		}
		return syscall.EIO
	}
	before := s.ops
	switch operation {
	case "sync file":
		s.ops.syncFile = func(f *os.File) error { return around(func() error { return before.syncFile(f) }) }
	case "publish":
		s.ops.publish = func(from, to *os.File, temp, name string, exclusive bool) error {
			return around(func() error { return before.publish(from, to, temp, name, exclusive) })
		}
	case "sync directory":
		s.ops.syncDirectory = func(f *os.File) error { return around(func() error { return before.syncDirectory(f) }) }
	}
}

// Each durable step is lost, and is applied but returns an error.
func TestFaults(t *testing.T) {
	data := bytes.Repeat([]byte("pack"), 100_000)
	methods := map[string]func(*Store) error{
		"Put":    func(s *Store) error { return s.Put(context.Background(), "packs/one/object", data) },
		"PutNew": func(s *Store) error { return s.PutNew(context.Background(), "packs/one/object", data) },
	}
	for method, put := range methods {
		for _, operation := range []string{"sync file", "publish", "sync directory"} {
			for fault, applied := range map[string]bool{"lost": false, "applied": true} {
				t.Run(method+"/"+operation+"/"+fault, func(t *testing.T) {
					dir := t.TempDir()
					s := create(t, dir)
					defer s.Close()
					failOnce(s, operation, applied)

					err := put(s)
					if !errors.Is(err, backup.ErrUnavailable) || !errors.Is(err, syscall.EIO) {
						t.Fatalf("got %v", err)
					}
					if got := leftovers(t, dir); len(got) != 0 {
						t.Errorf("left: %v", got)
					}
					published := operation == "publish" && applied
					switch got, err := s.Get(t.Context(), "packs/one/object", 1<<20); {
					case errors.Is(err, backup.ErrNotFound) && !published:
					case err != nil:
						t.Errorf("after the failure: %v", err)
					case !bytes.Equal(got, data):
						t.Errorf("after the failure: a part, of %d bytes", len(got))
					}

					err = put(s)
					if published && method == "PutNew" {
						if !errors.Is(err, backup.ErrExists) {
							t.Errorf("the second time: %v", err)
						}
					} else if err != nil {
						t.Errorf("the second time: %v", err)
					}
					if got, err := s.Get(t.Context(), "packs/one/object", 1<<20); err != nil || !bytes.Equal(got, data) {
						t.Errorf("in the end: %d bytes, %v", len(got), err)
					}
				})
			}
		}
	}
}

// The order makes an object durable. The number is the cost.
func TestSyncsOfAPut(t *testing.T) {
	dir := t.TempDir()
	s := create(t, dir)
	defer s.Close()
	var steps []string
	before := s.ops
	relative := func(f *os.File) string {
		name, err := filepath.Rel(dir, f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	s.ops.syncFile = func(f *os.File) error { steps = append(steps, "file"); return before.syncFile(f) }
	s.ops.syncDirectory = func(f *os.File) error {
		steps = append(steps, "directory "+relative(f))
		return before.syncDirectory(f)
	}
	s.ops.publish = func(from, to *os.File, temp, name string, exclusive bool) error {
		steps = append(steps, "publish")
		return before.publish(from, to, temp, name, exclusive)
	}
	for _, c := range []struct {
		name string
		want []string
	}{
		{"packs/one/a", []string{"file", "directory .", "directory packs", "publish", "directory packs/one"}},
		{"packs/one/b", []string{"file", "publish", "directory packs/one"}},
		{"packs/two/c", []string{"file", "directory packs", "publish", "directory packs/two"}},
		{"repository", []string{"file", "publish", "directory ."}},
	} {
		steps = nil
		if err := s.Put(t.Context(), c.name, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(steps, c.want) {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, strings.Join(steps, ", "), strings.Join(c.want, ", "))
		}
	}
}

// A Put that finds a directory that another Put has just created waits until it is durable.
func TestANewDirectoryIsDurableForAll(t *testing.T) {
	s := create(t, t.TempDir())
	defer s.Close()
	syncing, release := make(chan struct{}), make(chan struct{})
	published := make(chan struct{}, 2)
	first := true // makeDirectory runs under the Store's mutex
	before := s.ops
	s.ops.syncDirectory = func(f *os.File) error {
		if strings.HasSuffix(f.Name(), "/packs") && first {
			first = false
			close(syncing)
			<-release
		}
		return before.syncDirectory(f)
	}
	s.ops.publish = func(from, to *os.File, temp, name string, exclusive bool) error {
		published <- struct{}{}
		return before.publish(from, to, temp, name, exclusive)
	}
	var group errgroup.Group
	group.Go(func() error { return s.Put(t.Context(), "packs/one/a", []byte("a")) })
	<-syncing
	written := make(chan struct{})
	s.ops.syncFile = func(f *os.File) error { defer close(written); return before.syncFile(f) }
	group.Go(func() error { return s.Put(t.Context(), "packs/one/b", []byte("b")) })
	<-written
	select {
	case <-published:
		t.Error("an object went into a directory whose entry is not durable")
	case <-time.After(100 * time.Millisecond): // it waits, as it must
	}
	close(release)
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}
