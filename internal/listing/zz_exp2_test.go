package listing

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/bctl/bctl/internal/backup"
)

type opt struct {
	rawIDs, single, pred, planes, planesAll bool
	level                        zstd.EncoderLevel
}

func zz(v int64) uint64 { return uint64(v<<1) ^ uint64(v>>63) }

func vcost(vs []int64) (n int) {
	var t [10]byte
	for _, v := range vs {
		n += binary.PutVarint(t[:], v)
		if v == 0 { n-- }
	}
	return
}

func expColumns(b []byte, p *backup.Page, o opt) (cols, ids []byte) {
	var rows []*backup.Entry
	rows = append(rows, p.Self)
	for i := range p.Entries {
		rows = append(rows, &p.Entries[i])
	}
	b = append(b, 1)
	b = binary.AppendUvarint(b, uint64(len(rows)))
	b = appendNames(b, rows)
	for _, e := range rows {
		b = append(b, byte(e.Kind))
	}
	for _, e := range rows {
		b = append(b, byte(e.Flags))
	}
	b = appendDeltas(b, rows, func(e *backup.Entry) int64 { return int64(e.Inode) })
	rows = fullRows(rows)
	for _, value := range [...]func(*backup.Entry) int64{
		func(e *backup.Entry) int64 { return int64(e.Mode) },
		func(e *backup.Entry) int64 { return int64(e.UID) },
		func(e *backup.Entry) int64 { return int64(e.GID) },
		func(e *backup.Entry) int64 { return int64(e.Nlink) },
		func(e *backup.Entry) int64 { return int64(e.Device) },
	} {
		b = appendDeltas(b, rows, value)
	}
	if o.planesAll {
		for _, e := range rows {
			b = binary.AppendUvarint(b, uint64(e.Size))
		}
	} else {
		b = appendDeltas(b, rows, func(e *backup.Entry) int64 { return e.Size })
	}
	col := func(value, alt func(*backup.Entry) int64) {
		var a, c []int64
		prev := int64(0)
		for _, e := range rows {
			a = append(a, value(e)-prev)
			prev = value(e)
			c = append(c, value(e)-alt(e))
		}
		mode := byte(0)
		if o.pred && vcost(c) < vcost(a) {
			a, mode = c, 1
		}
		b = append(b, mode)
		for _, v := range a {
			b = binary.AppendVarint(b, v)
		}
	}
	ncol := func(value, alt func(*backup.Entry) int64) {
		var a, c []int64
		for _, e := range rows {
			a = append(a, value(e))
			c = append(c, value(e)-alt(e))
		}
		mode := byte(0)
		if o.pred && vcost(c) < vcost(a) {
			a, mode = c, 1
		}
		b = append(b, mode)
		if o.planes {
			for s := 0; s < 32; s += 8 {
				for _, v := range a {
					x := uint64(v)
					if mode == 1 {
						x = zz(v)
					}
					b = append(b, byte(x>>s))
				}
			}
			return
		}
		for _, v := range a {
			if mode == 1 {
				b = binary.AppendVarint(b, v)
			} else {
				b = binary.AppendUvarint(b, uint64(v))
			}
		}
	}
	ms := func(e *backup.Entry) int64 { return e.Mtime.Sec }
	cs := func(e *backup.Entry) int64 { return e.Ctime.Sec }
	bs := func(e *backup.Entry) int64 { return e.Btime.Sec }
	mn := func(e *backup.Entry) int64 { return int64(e.Mtime.Nsec) }
	cn := func(e *backup.Entry) int64 { return int64(e.Ctime.Nsec) }
	bn := func(e *backup.Entry) int64 { return int64(e.Btime.Nsec) }
	zero := func(e *backup.Entry) int64 { return 0 }
	if o.pred {
		col(cs, zero)
		col(ms, cs)
		col(bs, cs)
		ncol(cn, zero)
		ncol(mn, cn)
		ncol(bn, cn)
	} else {
		col(ms, zero)
		col(cs, zero)
		col(bs, zero)
		ncol(mn, zero)
		ncol(cn, zero)
		ncol(bn, zero)
	}
	for _, e := range rows {
		b = appendSpecial(b, e)
	}
	for _, e := range rows {
		b = appendXattrs(b, e)
	}
	for _, e := range rows {
		if e.Kind != backup.File {
			continue
		}
		if o.single {
			if len(e.Content.Refs) == 1 {
				b = append(b, 1)
				continue
			}
			b = append(b, byte(len(e.Content.Refs)))
			continue
		}
		b = binary.AppendUvarint(b, uint64(len(e.Content.Refs)))
		if len(e.Content.Refs) == 0 {
			continue
		}
		b = append(b, byte(e.Content.Depth))
		b = appendRefNumbers(b, e.Content)
	}
	for _, e := range rows {
		for i := range e.Content.Refs {
			ids = append(ids, e.Content.Refs[i].Chunk[:]...)
		}
	}
	if !o.rawIDs {
		return append(b, ids...), nil
	}
	return b, ids
}

func TestExp2(t *testing.T) {
	for _, root := range []string{"/tmp/gt_listing", "/usr/share/doc", "/root/go/pkg/mod/github.com", "/usr/lib", "/tmp/gt_huge"} {
		pages := loadTree(root)
		for _, o := range []opt{
			{level: zstd.SpeedFastest, rawIDs: true, single: true, planes: true},
			{level: zstd.SpeedFastest, rawIDs: true, single: true, planes: true, planesAll: true},
			{level: zstd.SpeedDefault, rawIDs: true, single: true, planes: true, planesAll: true},
		} {
			enc, _ := zstd.NewWriter(nil, zstd.WithEncoderLevel(o.level), zstd.WithEncoderCRC(false))
			n, total, raw := 0, 0, 0
			for _, p := range pages {
				cols, ids := expColumns(nil, &p, o)
				n += len(p.Entries) + 1
				raw += len(cols) + len(ids)
				total += 4 + len(enc.EncodeAll(cols, nil)) + len(ids)
			}
			fmt.Printf("%-30s %+v %7d bytes/entry %.2f raw %.2f\n", root, o, n, float64(total)/float64(n), float64(raw)/float64(n))
		}
	}
}
