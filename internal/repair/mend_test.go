package repair

import (
	"bytes"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/seal"
)

// sealedPack returns a pack of some frames, and what the index knows of it at an offset.
func sealedPack(t *testing.T, repository backup.RepositoryID, offset int64) ([]byte, index.PackToProve) {
	t.Helper()
	_, recipient, err := seal.GenerateIdentity()
	must(t, err)
	sealer, err := seal.NewSealer([]string{recipient})
	must(t, err)
	p := index.PackToProve{}
	p.Pack, p.Offset = backup.NewPackID(), offset
	w, err := pack.NewWriter(pack.KindData, repository, p.Pack, sealer, nil)
	must(t, err)
	for n := range 4 {
		body := bytes.Repeat([]byte{byte(n)}, 1000)
		_, err := w.Add(pack.Frame{Codec: pack.CodecNone, RawLength: len(body), Body: body, Chunks: []pack.Chunk{{Hash: backup.ChunkHash{byte(n)}, Length: uint32(len(body))}}})
		must(t, err)
		p.FrameBytes = append(p.FrameBytes, 1016)
	}
	data, err := w.Finish()
	must(t, err)
	p.Bytes = int64(len(data))
	p.Sums, err = pack.SumsOf(data, p.FrameBytes)
	must(t, err)
	return data, p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An object of two packs is put together of what is sound in two copies. It is not replaced by
// anything that is not better.
func TestMend(t *testing.T) {
	repository := backup.NewRepositoryID()
	first, one := sealedPack(t, repository, 0)
	second, two := sealedPack(t, repository, one.Bytes)
	whole, packs := append(bytes.Clone(first), second...), []index.PackToProve{one, two}
	flipped := func(at ...int) []byte {
		data := bytes.Clone(whole)
		for _, n := range at {
			data[n] ^= 1
		}
		return data
	}
	header := len(first) / 4 // in frame 0
	inFrame := func(pack, frame int) int { return pack*len(first) + header + frame*1016 }
	for name, test := range map[string]struct{ present, other, want []byte }{
		"the other is whole":        {flipped(inFrame(0, 1)), whole, whole},
		"nothing is there":          {nil, whole, whole},
		"nothing but a damaged one": {nil, flipped(inFrame(0, 1)), flipped(inFrame(0, 1))},
		"each has another frame":    {flipped(inFrame(0, 1), inFrame(1, 0)), flipped(inFrame(0, 2), inFrame(1, 2)), whole},
		"one is cut":                {whole[:len(first)+10], flipped(inFrame(0, 1), inFrame(1, 1)), flipped(inFrame(1, 1))},
		"both have the same damage": {flipped(inFrame(0, 1)), flipped(inFrame(0, 1)), nil},
		"the other is worse":        {flipped(inFrame(0, 1)), flipped(inFrame(0, 1), inFrame(0, 2)), nil},
		"the store's is whole":      {whole, flipped(inFrame(0, 1)), nil},
	} {
		got, known := Mend(packs, repository, test.present, test.other)
		if !known || !bytes.Equal(got, test.want) {
			t.Errorf("%s: %d bytes of %d, %t", name, len(got), len(test.want), known)
		}
	}
	// A scrub has adopted the checksums of damaged bytes: they do not make these bytes sound.
	packs[1].Adopted = true
	if got, known := Mend(packs, repository, flipped(inFrame(1, 1)), whole); known || got != nil {
		t.Errorf("with adopted checksums: %d bytes, %t", len(got), known)
	}
	packs[1].Adopted, packs[1].Sums = false, nil
	if got, known := Mend(packs, repository, nil, whole); known || got != nil {
		t.Errorf("without checksums: %d bytes, %t", len(got), known)
	}
	if _, known := Mend(nil, repository, nil, whole); known {
		t.Error("an object of which the index knows no pack")
	}
}
