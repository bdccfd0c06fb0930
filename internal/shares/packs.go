package shares

import (
	"context"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// packs has the stored bytes of each frame of the packs.
type packs struct {
	ids    map[backup.PackID]int64 // rows of packs
	rows   map[int64]int           // index of a pack's first frame, by its row
	counts map[int64]int           // of its frames
	frames []frame
	stored int64 // bytes of all packs
	chunks int64 // places of chunks
}

// A frame is what several chunks are compressed into.
type frame struct {
	stored float64 // bytes, with its part of the rest of the pack
	plain  float64 // bytes of its chunks
}

// readPacks reads the packs that are in the store.
func readPacks(ctx context.Context, x Index) (*packs, error) {
	p := &packs{ids: map[backup.PackID]int64{}, rows: map[int64]int{}, counts: map[int64]int{}}
	bytes := map[int64]int64{}
	for k, err := range x.Packs(ctx) {
		if err != nil {
			return nil, err
		}
		if !k.Gone {
			bytes[k.Row] = k.Bytes
			p.ids[k.Pack] = k.Row
			p.stored += k.Bytes
		}
	}
	for f, err := range x.Frames(ctx) {
		if err != nil {
			return nil, err
		}
		size, ok := bytes[f.Row]
		if !ok {
			continue
		}
		sealed := 0.0
		for _, n := range f.Bytes {
			sealed += float64(n)
		}
		p.rows[f.Row], p.counts[f.Row] = len(p.frames), len(f.Bytes)
		for _, n := range f.Bytes {
			p.frames = append(p.frames, frame{stored: float64(size) * float64(n) / max(sealed, 1)})
		}
	}
	for l, err := range x.Locations(ctx, nil) {
		if err != nil {
			return nil, err
		}
		if f := p.frame(&l); f != nil {
			f.plain += float64(l.Length)
			p.chunks++
		}
	}
	return p, nil
}

// frame returns the frame of a chunk; nil: its pack has been added or deleted meanwhile.
func (p *packs) frame(l *index.ChunkLocation) *frame {
	first, ok := p.rows[l.Pack]
	if !ok || int(l.Frame) >= p.counts[l.Pack] {
		return nil
	}
	return &p.frames[first+int(l.Frame)]
}

// bytes returns the stored bytes of a chunk in one place.
func (p *packs) bytes(l *index.ChunkLocation) float64 {
	f := p.frame(l)
	if f == nil || f.plain == 0 {
		return 0
	}
	return f.stored * float64(l.Length) / f.plain
}
