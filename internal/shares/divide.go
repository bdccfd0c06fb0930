package shares

import (
	"context"
	"iter"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// An Index is what is read. index.Index implements it.
type Index interface {
	Needed(ctx context.Context, without []backup.SnapshotID) (map[backup.ShardID][]backup.SnapshotNumber, error)
	References(ctx context.Context, shard backup.ShardID, from backup.SnapshotNumber, needed []backup.SnapshotNumber) iter.Seq2[[]byte, error]
	ChunkLists(ctx context.Context) iter.Seq2[backup.ChunkList, error]
	Packs(ctx context.Context) iter.Seq2[index.Pack, error]
	Frames(ctx context.Context) iter.Seq2[index.PackFrames, error]
	Locations(ctx context.Context, rows []int64) iter.Seq2[index.ChunkLocation, error]
}

// A Usage is what a group of shards needs, in bytes. Content that it has several times counts once.
type Usage struct {
	Data   float64 // before compression
	Stored float64
	Unique float64 // of Stored: what no other group needs
	Share  float64 // Unique, and of what n groups need an nth of Stored
}

// A Result is how what is stored divides.
type Result struct {
	Groups []Usage
	Stored int64   // bytes of all packs: the sum of the shares and Unused
	Unused float64 // what no snapshot needs
}

const (
	// DefaultMemory is the default of the memory for chunks.
	DefaultMemory = 256 << 20
	needBytes     = 150 // for one chunk that one group needs
	maxParts      = 256
)

// Divide divides what is stored among groups of shards, given by their numbers from 0. Chunks for
// which memory does not suffice are looked at in parts: then the references are read several times.
// What changes meanwhile may be left out.
func Divide(ctx context.Context, x Index, groups map[backup.ShardID]int, memory int64) (Result, error) {
	p, err := readPacks(ctx, x)
	if err != nil {
		return Result{}, err
	}
	needed, err := x.Needed(ctx, nil)
	if err != nil {
		return Result{}, err
	}
	d := &division{packs: p, reading: reading{index: x, groups: groups, needed: needed}, limit: memory / needBytes}
	result := Result{Stored: p.stored, Groups: make([]Usage, 0, len(groups))}
	for _, group := range groups {
		for len(result.Groups) <= group {
			result.Groups = append(result.Groups, Usage{})
		}
	}
	parts := 1
	for p.chunks/int64(parts) > d.limit && parts < maxParts {
		parts *= 2
	}
	// A part that needs too much memory is halved.
	for from := 0; from < maxParts; {
		size := maxParts / parts
		fits, err := d.part(ctx, from, from+size, parts < maxParts, result.Groups)
		if err != nil {
			return Result{}, err
		}
		if !fits {
			parts *= 2
			continue
		}
		from += size
	}
	result.Unused = float64(p.stored)
	for i := range result.Groups {
		result.Unused -= result.Groups[i].Share
	}
	result.Unused = max(result.Unused, 0)
	return result, nil
}

// A division is a Divide in progress.
type division struct {
	packs   *packs
	reading reading
	limit   int64 // needs in memory
}

// A chunk is one that a group needs.
type chunk struct {
	stored float64 // in all places
	plain  uint32
	groups int32
}

// part adds the chunks whose ids begin with a byte in [from, to). It adds nothing, and reports
// false, if there are too many.
func (d *division) part(ctx context.Context, from, to int, limited bool, groups []Usage) (fits bool, err error) {
	needs := set{}
	err = d.reading.read(ctx, func(n need) {
		if b := int(n.chunk[0]); b >= from && b < to && (!limited || int64(len(needs)) <= d.limit) {
			needs[n] = struct{}{}
		}
	})
	if err != nil || limited && int64(len(needs)) > d.limit {
		return false, err
	}
	chunks := make(map[backup.ChunkID]chunk, len(needs))
	for n := range needs {
		c := chunks[n.chunk]
		c.groups++
		chunks[n.chunk] = c
	}
	for l, err := range d.reading.index.Locations(ctx, nil) {
		if err != nil {
			return false, err
		}
		if c, ok := chunks[l.Chunk]; ok {
			c.stored += d.packs.bytes(&l)
			c.plain = l.Length
			chunks[l.Chunk] = c
		}
	}
	for n := range needs {
		c, u := chunks[n.chunk], &groups[n.group]
		u.Data += float64(c.plain)
		u.Stored += c.stored
		u.Share += c.stored / float64(c.groups)
		if c.groups == 1 {
			u.Unique += c.stored
		}
	}
	return true, nil
}
