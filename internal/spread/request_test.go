package spread

import (
	"errors"
	"reflect"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/restore"
)

// What is decoded from the index is valid and can be stored again, or is refused as corrupt.
func FuzzDecodeRequest(f *testing.F) {
	for _, r := range []Request{
		{Overwrite: restore.IfChanged}, {Path: []byte("a/\xff"), Overwrite: restore.Always, Verify: true, NoSync: true, TargetAttributes: true},
	} {
		data, err := r.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"Path":"Li4vLi4=","Overwrite":"always"}`)) // ../..
	f.Add([]byte(`{"Overwrite":"never"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeRequest(data)
		if err != nil {
			if !errors.Is(err, backup.ErrCorrupt) {
				t.Errorf("%v is not ErrCorrupt", err)
			}
			return
		}
		if err := backup.CheckPath(string(r.Path)); err != nil {
			t.Errorf("path %q: %v", r.Path, err)
		}
		if r.Overwrite != restore.IfChanged && r.Overwrite != restore.Always {
			t.Errorf("overwrite %q", r.Overwrite)
		}
		again, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if len(again) > index.MaxRestoreRequestBytes {
			return
		}
		if second, err := DecodeRequest(again); err != nil || !reflect.DeepEqual(withoutEmpty(second), withoutEmpty(r)) {
			t.Errorf("%+v became %+v, %v", r, second, err)
		}
	})
}

// withoutEmpty makes an empty path nil.
func withoutEmpty(r Request) Request {
	if len(r.Path) == 0 {
		r.Path = nil
	}
	return r
}

// A result is of a restorer, which may be stolen: what is decoded is no larger than what was
// stored.
func FuzzDecodeResult(f *testing.F) {
	r := Result{Summary: restore.Summary{Files: 3, Problems: 1}, Begun: Begun{Inode: 7, Mode: 0o40755}}
	bytes := 0
	r.Add(backup.Problem{Path: "a\xff", Op: "open", Err: "no"}, &bytes)
	data, err := r.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("{}"))
	f.Add([]byte(`{"Summary":{"Files":-9223372036854775808},"Problems":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := DecodeResult(data)
		if err != nil {
			if !errors.Is(err, backup.ErrCorrupt) {
				t.Errorf("%v is not ErrCorrupt", err)
			}
			return
		}
		if len(r.Problems) > len(data) {
			t.Errorf("%d problems of %d bytes", len(r.Problems), len(data))
		}
		if _, err := r.Encode(); err != nil {
			t.Error(err)
		}
	})
}

// Longer values than the index stores are refused before they are parsed.
func TestLongValuesAreCorrupt(t *testing.T) {
	if _, err := DecodeRequest(make([]byte, index.MaxRestoreRequestBytes+1)); !errors.Is(err, backup.ErrCorrupt) {
		t.Error(err)
	}
	if _, err := DecodeResult(make([]byte, index.MaxRestoreBlobBytes+1)); !errors.Is(err, backup.ErrCorrupt) {
		t.Error(err)
	}
}
