package listing

import "bytes"

// Names returns the names of the entries of a listing, in order. It reads nothing else of it.
func (d *Decoder) Names(data []byte) ([]string, error) {
	r := reader{b: data, memory: d}
	v, compression := r.byte(), r.byte()
	if r.err == nil && v != version {
		r.fail("unknown version %d", v)
	}
	columns := r.bytes(r.uvarint())
	if r.err != nil {
		return nil, r.err
	}
	columns, err := unpack(d.columns[:0], compression, columns)
	if err != nil {
		return nil, err
	}
	if compression != columnsPlain {
		d.columns = columns
	}
	r.b = columns
	hasSelf := r.byte()
	r.nonNegative() // the key of the next page
	n := r.count(maxRows, minRowSize)
	if hasSelf > 1 || int(hasSelf) > n {
		r.fail("self flag %d", hasSelf)
	}
	if r.err != nil {
		return nil, r.err
	}
	d.all, d.rows = again(d.all, n), again(d.rows, n)
	for i := range d.all {
		d.rows[i] = &d.all[i]
	}
	if r.names(d.rows, hasSelf == 1); r.err != nil {
		return nil, r.err
	}
	names := make([]string, 0, n)
	for _, e := range d.rows[hasSelf:] {
		names = append(names, e.Name)
	}
	return names, nil
}

// SameNames reports whether two plain listings have the same names, without reading these one by
// one. It reports false if one of the listings is not plain, or is damaged.
func SameNames(a, b []byte) bool {
	x, y := namesColumn(a), namesColumn(b)
	return x != nil && bytes.Equal(x, y)
}

// namesColumn returns the part of a plain listing with the number of its names and these; nil: it
// has none.
func namesColumn(data []byte) []byte {
	r := reader{b: data}
	if r.byte() != version || r.byte() != columnsPlain {
		return nil
	}
	r.b = r.bytes(r.uvarint())
	r.byte() // whether the directory itself is the first row
	r.nonNegative()
	column := r.b
	n, text := r.uvarint(), uint64(0)
	if n > uint64(len(r.b)) {
		return nil
	}
	for range n {
		r.uvarint()
	}
	for range n {
		if text += r.uvarint(); text > uint64(len(r.b)) {
			return nil
		}
	}
	if r.bytes(text); r.err != nil {
		return nil
	}
	return column[:len(column)-len(r.b)]
}
