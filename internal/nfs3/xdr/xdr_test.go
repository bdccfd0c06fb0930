package xdr_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/bctl/bctl/internal/nfs3/xdr"
)

func TestRoundTrip(t *testing.T) {
	b := xdr.AppendUint32(nil, 0xdeadbeef)
	b = xdr.AppendUint64(b, 1<<63|5)
	b = xdr.AppendBool(xdr.AppendBool(b, true), false)
	for _, data := range []string{"", "a", "ab", "abc", "abcd", "abcde"} {
		if b = xdr.AppendOpaque(b, data); len(b)%4 != 0 {
			t.Errorf("after %q the message has %d bytes", data, len(b))
		}
	}
	b = xdr.AppendFixed(b, []byte("fixed"))
	d := xdr.NewDecoder(b)
	if v := d.Uint32(); v != 0xdeadbeef {
		t.Errorf("%#x", v)
	}
	if v := d.Uint64(); v != 1<<63|5 {
		t.Errorf("%#x", v)
	}
	if a, b := d.Bool(), d.Bool(); !a || b {
		t.Errorf("%v, %v; want true, false", a, b)
	}
	for _, want := range []string{"", "a", "ab", "abc", "abcd", "abcde"} {
		if got := d.Opaque(5); string(got) != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := d.Fixed(5); string(got) != "fixed" || d.Len() != 0 || d.Err() != nil {
		t.Errorf("%q, %d bytes are left, error %v", got, d.Len(), d.Err())
	}
}

func TestMalformed(t *testing.T) {
	for name, read := range map[string]func(d *xdr.Decoder){
		"a short int":      func(d *xdr.Decoder) { d.Fixed(8); d.Uint32() },
		"a short hyper":    func(d *xdr.Decoder) { d.Uint32(); d.Uint64() },
		"not a bool":       func(d *xdr.Decoder) { d.Bool() },
		"over the limit":   func(d *xdr.Decoder) { d.Fixed(4); d.Opaque(3) },
		"no padding":       func(d *xdr.Decoder) { d.Fixed(9) },
		"a length of 4 GB": func(d *xdr.Decoder) { d.Opaque(1 << 40) },
		"negative":         func(d *xdr.Decoder) { d.Fixed(-1) },
	} {
		message := []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 4, 9}
		d := xdr.NewDecoder(message)
		read(d)
		if !errors.Is(d.Err(), xdr.ErrMalformed) {
			t.Errorf("%s: error %v, want ErrMalformed", name, d.Err())
		}
		first := d.Err()
		if d.Uint32() != 0 || d.Uint64() != 0 || d.Bool() || d.Opaque(100) != nil || d.Len() != 0 || d.Err() != first {
			t.Errorf("%s: something comes after the error, which is now %v", name, d.Err())
		}
	}
}

// Any bytes are decoded without a panic, and what was encoded comes back.
func FuzzDecoder(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 2, 'a', 'b', 0, 0}, 3)
	f.Fuzz(func(t *testing.T, message []byte, limit int) {
		d := xdr.NewDecoder(message)
		for d.Err() == nil && d.Len() > 0 {
			data := d.Opaque(limit)
			if len(data) > max(limit, 0) || len(data) > len(message) {
				t.Fatalf("%d bytes, limit %d", len(data), limit)
			}
			if back := xdr.NewDecoder(xdr.AppendOpaque(nil, data)).Opaque(len(data)); !bytes.Equal(back, data) {
				t.Fatalf("%x came back as %x", data, back)
			}
		}
	})
}
