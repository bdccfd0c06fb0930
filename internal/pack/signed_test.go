package pack

import (
	"bytes"
	"errors"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/seal"
)

func segmentPack(t testing.TB, k keys) []byte {
	w := k.writer(t, KindSegment)
	add(t, w, Frame{RawLength: 4, Body: []byte("rows")})
	add(t, w, Frame{RawLength: 4, Body: []byte("more")})
	return k.finishSigned(t, w)
}

func TestOpenSigned(t *testing.T) {
	k, other := newKeys(t), newKeys(t)
	data := segmentPack(t, k)
	signer := k.signing.Signer()
	if _, err := OpenSigned(data, KindSegment, testName, testRepository, testID, signer, k.opener); err != nil {
		t.Fatal(err)
	}
	// Anyone who knows the recipients, which are public, can make all of this except the signature.
	forged := k
	forged.signing = other.signing
	unsigned := k.writer(t, KindSegment)
	add(t, unsigned, Frame{RawLength: 4, Body: []byte("rows")})
	dataPack := smallPack(t, k)
	for name, open := range map[string]func() (*Reader, error){
		"signed by another": func() (*Reader, error) {
			return OpenSigned(segmentPack(t, forged), KindSegment, testName, testRepository, testID, signer, k.opener)
		},
		"signed for another name": func() (*Reader, error) {
			return OpenSigned(data, KindSegment, testName+"x", testRepository, testID, signer, k.opener)
		},
		"signed in another repository": func() (*Reader, error) {
			return OpenSigned(data, KindSegment, testName, backup.RepositoryID{1}, testID, signer, k.opener)
		},
		"another pack id": func() (*Reader, error) {
			return OpenSigned(data, KindSegment, testName, testRepository, backup.PackID{1}, signer, k.opener)
		},
		"another kind": func() (*Reader, error) {
			return OpenSigned(data, KindCommit, testName, testRepository, testID, signer, k.opener)
		},
		"no signer": func() (*Reader, error) {
			return OpenSigned(data, KindSegment, testName, testRepository, testID, seal.Signer{}, k.opener)
		},
		"a signature of zeros": func() (*Reader, error) {
			return OpenSigned(finishTable(unsigned, unsigned.table.appendTo(nil), nil), KindSegment, testName, testRepository, testID, signer, k.opener)
		},
		"a data pack": func() (*Reader, error) {
			return OpenSigned(dataPack, KindData, testName, testRepository, testID, signer, k.opener)
		},
		"a bitmap behind the signature": func() (*Reader, error) {
			return OpenSigned(withBitmap(1)(bytes.Clone(data)), KindSegment, testName, testRepository, testID, signer, k.opener)
		},
	} {
		if _, err := open(); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
	if _, err := OpenSigned(data, KindSegment, testName, testRepository, testID, signer, other.opener); !errors.Is(err, backup.ErrWrongKey) {
		t.Errorf("with another identity: %v, want ErrWrongKey", err)
	}
	if err := Verify(data, testName, testRepository, signer); err != nil {
		t.Errorf("without a key: %v", err)
	}
}

// A pack's kind determines its final sections, even if the caller does not check the signature.
func TestSectionsFollowFromTheKind(t *testing.T) {
	k := newKeys(t)
	segment := k.writer(t, KindSegment)
	add(t, segment, Frame{RawLength: 4, Body: []byte("rows")})
	add(t, segment, Frame{RawLength: 4, Body: []byte("more")})
	// with inserts sections before a pack's trailer, and records them there.
	with := func(data []byte, bitmap, signature int) []byte {
		tr, err := parseTrailer(data)
		if err != nil {
			t.Fatal(err)
		}
		data = append(bytes.Clone(data[:len(data)-trailerBytes]), make([]byte, bitmap+signature)...)
		tr.bitmapBytes += int64(bitmap)
		tr.signatureBytes += int64(signature)
		tr.packBytes += int64(bitmap + signature)
		return appendTrailer(data, tr)
	}
	unsigned, err := segment.finish(func([]byte) []byte { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBytes(with(unsigned, 0, seal.SignatureBytes), testRepository, testID, k.opener); err != nil {
		t.Fatalf("what the vectors are made with is not right itself: %v", err)
	}
	for name, data := range map[string][]byte{
		"a data pack with a signature":         with(smallPack(t, k), 0, seal.SignatureBytes),
		"a segment without a signature":        unsigned,
		"a thinned segment":                    thinnedSegment(t, k),
		"a thinned segment without signature":  with(unsigned, 1, 0),
		"a thinned data pack with a signature": with(smallPack(t, k), 1, seal.SignatureBytes),
	} {
		if _, err := OpenBytes(data, testRepository, testID, k.opener); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}

// thinnedSegment is a segment from which its signer removed a frame: everything is valid, except
// that segments cannot be thinned.
func thinnedSegment(t testing.TB, k keys) []byte {
	w := k.writer(t, KindSegment)
	add(t, w, Frame{RawLength: 4, Body: []byte("rows")})
	add(t, w, Frame{RawLength: 4, Body: []byte("more")})
	first := w.FrameBytes()[0]
	data := k.finishSigned(t, w)
	tr, err := parseTrailer(data)
	if err != nil {
		t.Fatal(err)
	}
	thinned := append(bytes.Clone(data[:tr.headerBytes]), data[tr.headerBytes+int64(first):tr.signatureOffset()]...)
	thinned = append(thinned, 0b10)
	thinned = append(thinned, k.signing.Sign(testRepository, testName, thinned)...)
	tr.bitmapBytes, tr.packBytes = 1, int64(len(thinned)+trailerBytes)
	return appendTrailer(thinned, tr)
}

// The signature covers every byte of a signed pack, and the positions of its sections.
func TestSignedPackChangedAnywhere(t *testing.T) {
	k := newKeys(t)
	data := segmentPack(t, k)
	for i := range data {
		damaged := bytes.Clone(data)
		damaged[i] ^= 1 << (i % 8)
		if _, err := k.openSigned(damaged, KindSegment); !errors.Is(err, backup.ErrCorrupt) && !errors.Is(err, backup.ErrInvalid) {
			t.Fatalf("byte %d of %d changed: %v", i, len(data), err)
		}
		if _, err := k.openSigned(data[:i], KindSegment); !errors.Is(err, backup.ErrCorrupt) {
			t.Fatalf("cut after %d of %d bytes: %v", i, len(data), err)
		}
	}
	for _, more := range [][]byte{{0}, data, make([]byte, 100)} {
		if _, err := k.openSigned(append(bytes.Clone(data), more...), KindSegment); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%d bytes more: %v", len(more), err)
		}
		if _, err := k.openSigned(append(bytes.Clone(more), data...), KindSegment); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%d bytes before: %v", len(more), err)
		}
	}
}

// A pack's kind determines how it is finished.
func TestFinishOfTheOtherKind(t *testing.T) {
	k := newKeys(t)
	for kind := KindData; kind <= KindIndex; kind++ {
		w := k.writer(t, kind)
		f := Frame{RawLength: 1, Body: []byte("x")}
		if kind == KindData {
			f.Chunks = []Chunk{{Length: 1}}
		}
		add(t, w, f)
		var err error
		if kind == KindData {
			_, err = w.FinishSigned(k.signing, testName)
		} else {
			_, err = w.Finish()
		}
		if !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%v: %v", kind, err)
		}
	}
	for _, kind := range []Kind{0, KindIndex + 1, 255} {
		if _, err := NewWriter(kind, testRepository, testID, k.sealer, nil); !errors.Is(err, backup.ErrInvalid) {
			t.Errorf("%v: %v", kind, err)
		}
	}
}
