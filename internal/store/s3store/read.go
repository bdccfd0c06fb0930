package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/store"
)

// drainBytes is the maximum rest of a body that is read to its end, so that the connection can be
// reused.
const drainBytes = 256 << 10

// GetRange implements store.Store. It makes one request, except for a length of 0.
func (s *Store) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if err := store.CheckRange(offset, length); err != nil {
		return nil, s.fail("get", name, nil, err)
	}
	err := s.do(ctx, "get", name, func(ctx context.Context, w *watchdog) error {
		if length == 0 { // HTTP has no such range
			return s.checkReach(ctx, name, offset)
		}
		grown, err := s.getRange(ctx, w, dst, name, offset, length)
		if err == nil {
			dst = grown
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return dst, nil
}

func (s *Store) checkReach(ctx context.Context, name string, offset int64) error {
	info, err := s.head(ctx, name)
	if err == nil && (offset > info.Size || offset < -info.Size) {
		err = tooShort(info.Size)
	}
	return err
}

func tooShort(sizeBytes int64) error {
	return final{fmt.Errorf("it has only %d bytes: %w", sizeBytes, backup.ErrCorrupt)}
}

func (s *Store) getRange(ctx context.Context, w *watchdog, dst []byte, name string, offset, length int64) ([]byte, error) {
	var options minio.GetObjectOptions
	err := options.SetRange(offset, offset+length-1)
	if offset < 0 {
		err = options.SetRange(0, offset) // the last -offset bytes
	}
	if err != nil {
		return nil, final{err}
	}
	body, _, header, err := s.core.GetObject(ctx, s.options.Bucket, s.prefix+name, options)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if err := checkServed(header, offset, length); err != nil {
		return nil, err
	}
	begin := len(dst)
	dst = slices.Grow(dst, int(length))[:begin+int(length)]
	in := download{w, body}
	if _, err := io.ReadFull(in, dst[begin:]); err != nil {
		return nil, err
	}
	if rest := -offset - length; offset < 0 && rest > 0 && rest <= drainBytes {
		_, _ = io.Copy(io.Discard, in) // only to reuse the connection
	}
	return dst, nil
}

// checkServed checks that the answer contains the whole requested range, and begins with it.
func checkServed(header http.Header, offset, length int64) error {
	if header.Get("Content-Range") == "" {
		// The whole object: the server ignores Range, as it may.
		size, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64)
		if err == nil && size < max(offset+length, -offset) {
			return tooShort(size)
		}
		if offset == 0 || offset == -size {
			return nil
		}
		return final{fmt.Errorf("the server cannot read a part of an object: %w", backup.ErrInvalid)}
	}
	if strings.HasSuffix(header.Get("Content-Range"), "/0") {
		return tooShort(0) // an empty object has no range; minio answers "bytes 0--1/0"
	}
	first, last, size, err := parseContentRange(header.Get("Content-Range"))
	if err != nil {
		return err
	}
	if size < max(offset+length, -offset) {
		return tooShort(size)
	}
	wantFirst, wantLast := offset, offset+length-1
	if offset < 0 {
		wantFirst, wantLast = size+offset, size-1
	}
	if first != wantFirst || last != wantLast {
		return fmt.Errorf("asked for bytes %d to %d, got %d to %d", wantFirst, wantLast, first, last)
	}
	return nil
}

// parseContentRange parses "bytes FIRST-LAST/SIZE".
func parseContentRange(s string) (first, last, size int64, err error) {
	values, ok := strings.CutPrefix(s, "bytes ")
	bounds, total, ok2 := strings.Cut(values, "/")
	from, to, ok3 := strings.Cut(bounds, "-")
	if ok && ok2 && ok3 {
		var e1, e2, e3 error
		first, e1 = strconv.ParseInt(from, 10, 64)
		last, e2 = strconv.ParseInt(to, 10, 64)
		size, e3 = strconv.ParseInt(total, 10, 64)
		if errors.Join(e1, e2, e3) == nil && 0 <= first && first <= last && last < size {
			return first, last, size, nil
		}
	}
	return 0, 0, 0, fmt.Errorf("the answer has the range %.100q", s)
}

// Get implements store.Store. It compares the bytes with the checksum that the server stores, if
// there is one. Bytes that differ in the same way twice are not damaged by the transfer.
func (s *Store) Get(ctx context.Context, name string, maxBytes int64) ([]byte, error) {
	var data []byte
	var before damagedError
	err := s.do(ctx, "get", name, func(ctx context.Context, w *watchdog) (err error) {
		data, err = s.getWhole(ctx, w, name, maxBytes)
		if damaged, ok := errors.AsType[damagedError](err); ok {
			if damaged == before {
				return final{err}
			}
			before = damaged
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

func (s *Store) getWhole(ctx context.Context, w *watchdog, name string, maxBytes int64) ([]byte, error) {
	var options minio.GetObjectOptions
	options.Set("x-amz-checksum-mode", "ENABLED")
	body, info, _, err := s.core.GetObject(ctx, s.options.Bucket, s.prefix+name, options)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	switch {
	case info.Size < 0:
		return nil, final{fmt.Errorf("the server does not say how large it is: %w", backup.ErrUnavailable)}
	case info.Size > maxBytes:
		return nil, final{fmt.Errorf("it has %d bytes, more than %d: %w", info.Size, maxBytes, backup.ErrInvalid)}
	}
	data := make([]byte, info.Size)
	if _, err := io.ReadFull(download{w, body}, data); err != nil {
		return nil, err
	}
	if want := info.ChecksumCRC64NVME; want != "" {
		if is := minio.ChecksumCRC64NVME.ChecksumBytes(data).Encoded(); is != want {
			return nil, damagedError{is}
		}
	}
	return data, nil
}

// listObjects is the number of objects of a listing in memory at once: a page of S3's.
const listObjects = 1000

// List implements store.Store. It starts no goroutine, and retries each page for as long as any
// operation.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		if err := store.CheckPrefix(prefix); err != nil {
			yield(store.Object{}, s.fail("list", prefix, nil, err))
			return
		}
		for last, more := "", true; more; {
			var page []store.Object
			err := s.retry(ctx, "list", prefix, func(ctx context.Context, _ *watchdog) (err error) {
				page, last, more, err = s.listPage(ctx, prefix, last)
				return err
			})
			if err != nil {
				yield(store.Object{}, err)
				return
			}
			for _, object := range page {
				if !yield(object, nil) {
					return
				}
			}
		}
	}
}

// listPage returns up to listObjects objects after the key last, the key after which the next page
// begins, and whether there may be more. With an error, next is last.
func (s *Store) listPage(ctx context.Context, prefix, last string) (page []store.Object, next string, more bool, err error) {
	next = last
	noOwner := false
	keys := 0
	for info := range s.core.ListObjectsIter(ctx, s.options.Bucket, minio.ListObjectsOptions{
		Prefix: s.prefix + prefix, Recursive: true, StartAfter: last, MaxKeys: listObjects, FetchOwner: &noOwner,
	}) {
		if info.Err != nil {
			return nil, last, true, info.Err
		}
		if info.Key <= next && next != "" {
			return nil, last, true, final{fmt.Errorf("the server does not list in order: %w", backup.ErrInvalid)}
		}
		next = info.Key
		if name, ok := s.objectName(info.Key); ok {
			page = append(page, store.Object{Name: name, SizeBytes: info.Size, Modified: info.LastModified})
		}
		if keys++; keys == listObjects {
			return page, next, true, nil
		}
	}
	// If the context is canceled, the iterator ends as if the listing were complete.
	if err := context.Cause(ctx); err != nil {
		return nil, last, true, err
	}
	return page, next, false, nil
}
