package sqliteindex

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

const (
	// placeReaders is how many connections read the places of chunks at the same time.
	placeReaders = 2
	// placesAtOnce is how many places become one row.
	placesAtOnce = 1000
	placeBits    = 20 // of a character of a place
)

// These queries read the places of chunks in [?1, ?2). A row takes more time in the driver than in
// SQLite, so SQLite joins many places in one row: each is an id of idBytes, followed by three
// characters. Two characters are the pack's row, and one is the frame, which is less than
// index.MaxChunks.
const (
	// afterPlaces is the first chunk that one row has no room for.
	afterPlaces  = "SELECT id FROM chunks WHERE id >= ?1 AND id < ?2 ORDER BY id LIMIT 1 OFFSET ?3"
	joinedPlaces = "SELECT CAST(coalesce(group_concat(id || char(pack >> 20, pack & 1048575, frame), ''), '') AS BLOB) FROM chunks WHERE id >= ?1 AND id < ?2"
	copiedPlaces = "SELECT id, pack, frame FROM chunk_copies WHERE id >= ?1 AND id < ?2"

	idBytes = len(backup.ChunkID{})
)

// EachPlace implements entindex.HotReader.
func (b *backend) EachPlace(ctx context.Context, packs []int64, do func(index.PlaceOf) error) error {
	condition, args := "", []any(nil)
	if packs != nil {
		list, err := json.Marshal(packs)
		if err != nil {
			return err
		}
		condition, args = " AND pack IN (SELECT value FROM json_each(?3))", []any{string(list)}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, reading := errgroup.WithContext(ctx)
	batches := make(chan []index.PlaceOf)
	for n := range placeReaders {
		from, to := idRange(n*256/placeReaders, (n+1)*256/placeReaders)
		group.Go(func() error {
			r := placeReader{backend: b, condition: condition, args: args, batches: batches}
			return errors.Join(r.read(reading, from, to), r.readCopies(reading, from, to))
		})
	}
	var err error
	go func() {
		err = group.Wait()
		close(batches)
	}()
	for batch := range batches {
		for _, place := range batch {
			if err := do(place); err != nil {
				return err
			}
		}
	}
	return err
}

// A placeReader sends places in batches. They belong to the receiver.
type placeReader struct {
	*backend
	condition string
	args      []any // of the condition
	batches   chan<- []index.PlaceOf
}

func (r *placeReader) send(ctx context.Context, batch []index.PlaceOf) error {
	if len(batch) == 0 {
		return nil
	}
	select {
	case r.batches <- batch:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// read reads the first places of the chunks in [from, to).
func (r *placeReader) read(ctx context.Context, from, to []byte) error {
	var joined sql.RawBytes
	pace := worker{backend: r.backend}
	for from != nil {
		if err := pace.giveWay(ctx); err != nil {
			return err
		}
		var next []byte // nil: there is none
		err := r.each(ctx, afterPlaces, []any{from, to, placesAtOnce}, func(rows *sql.Rows) error { return rows.Scan(&next) })
		if err != nil {
			return err
		}
		end := to
		if next != nil {
			end = next
		}
		var batch []index.PlaceOf
		err = r.each(ctx, joinedPlaces+r.condition, append([]any{from, end}, r.args...), func(rows *sql.Rows) (err error) {
			if err := rows.Scan(&joined); err != nil {
				return err
			}
			batch, err = splitPlaces(joined)
			return err
		})
		if err != nil {
			return err
		}
		if err := r.send(ctx, batch); err != nil {
			return err
		}
		from = next
	}
	return nil
}

// readCopies reads the further places of the chunks in [from, to).
func (r *placeReader) readCopies(ctx context.Context, from, to []byte) error {
	var batch []index.PlaceOf
	var id sql.RawBytes
	err := r.each(ctx, copiedPlaces+r.condition, append([]any{from, to}, r.args...), func(rows *sql.Rows) error {
		var place index.PlaceOf
		if err := rows.Scan(&id, &place.Pack, &place.Frame); err != nil {
			return err
		}
		place.Chunk = backup.ChunkID(id)
		if batch = append(batch, place); len(batch) < placesAtOnce {
			return nil
		}
		full := batch
		batch = nil
		return r.send(ctx, full)
	})
	if err != nil {
		return err
	}
	return r.send(ctx, batch)
}

// splitPlaces is the inverse of joinedPlaces.
func splitPlaces(joined []byte) ([]index.PlaceOf, error) {
	places := make([]index.PlaceOf, 0, len(joined)/(idBytes+3))
	for len(joined) > 0 {
		if len(joined) < idBytes {
			return nil, fmt.Errorf("a chunk of the index has an id of %d bytes: %w", len(joined), backup.ErrCorrupt)
		}
		place := index.PlaceOf{Chunk: backup.ChunkID(joined[:idBytes])}
		joined = joined[idBytes:]
		var characters [3]uint32
		for i := range characters {
			character, size := character(joined)
			if size == 0 {
				return nil, fmt.Errorf("the place of chunk %s cannot be read: %w", place.Chunk, backup.ErrCorrupt)
			}
			characters[i], joined = character, joined[size:]
		}
		place.Pack, place.Frame = int64(characters[0])<<placeBits|int64(characters[1]), characters[2]
		places = append(places, place)
	}
	return places, nil
}

// character decodes what SQLite's function char has encoded. Unlike utf8.DecodeRune, it accepts
// surrogates, which are numbers as well. The size is 0 if there is no whole character.
func character(b []byte) (character uint32, size int) {
	if len(b) == 0 {
		return 0, 0
	}
	first := b[0]
	switch {
	case first < utf8.RuneSelf:
		return uint32(first), 1
	case first < 0xe0:
		character, size = uint32(first&0x1f), 2
	case first < 0xf0:
		character, size = uint32(first&0x0f), 3
	default:
		character, size = uint32(first&0x07), 4
	}
	if len(b) < size {
		return 0, 0
	}
	for _, more := range b[1:size] {
		character = character<<6 | uint32(more&0x3f)
	}
	return character, size
}
