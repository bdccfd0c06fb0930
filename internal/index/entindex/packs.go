package entindex

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
)

// A packState is a registered pack.
type packState struct {
	id        int64
	condemned bool
}

// registerPacks registers the packs of all PackStored results, with their chunks. The chunks of a
// pack that is registered already were stored in the same transaction as the pack.
func (a *application) registerPacks(ctx context.Context) error {
	stored := map[backup.PackID]*backup.PackStored{}
	for i, r := range a.results {
		if r.Pack != nil && a.live(i) {
			stored[r.Pack.Pack] = r.Pack
		}
	}
	if len(stored) == 0 {
		return nil
	}
	ids, err := a.tx.insertPacks(ctx, stored)
	if err != nil {
		return err
	}
	if rows := chunkRows(stored, ids); len(rows) > 0 {
		return a.tx.Hot.PutChunks(ctx, rows)
	}
	return nil
}

// chunkRows returns the places of the new packs' chunks, by chunk id and pack.
func chunkRows(stored map[backup.PackID]*backup.PackStored, ids map[backup.PackID]int64) []ChunkRow {
	total := 0
	for pack := range ids {
		total += len(stored[pack].Chunks)
	}
	rows := make([]ChunkRow, 0, total)
	for pack, id := range ids {
		for _, c := range stored[pack].Chunks {
			rows = append(rows, ChunkRow{c, id})
		}
	}
	return sortPlaces(rows)
}

// sortPlaces sorts places by chunk id and pack, and removes those that stand there twice.
func sortPlaces(places []ChunkRow) []ChunkRow {
	slices.SortFunc(places, func(a, b ChunkRow) int {
		return cmp.Or(slices.Compare(a.ID[:], b.ID[:]), cmp.Compare(a.Pack, b.Pack))
	})
	return slices.Compact(places)
}

const selectPacks = `SELECT id, pack FROM packs WHERE {pack in $1}`

// lockPacks finds the packs that open batches rely on, and locks them until the end of the
// transaction. Either a transaction that condemns a pack waits for the batch, or the batch finds
// the pack condemned (I6).
func (a *application) lockPacks(ctx context.Context) error {
	wanted := map[backup.PackID]bool{}
	for i, r := range a.results {
		if r.Batch != nil && a.live(i) && a.batches[r.Batch.Batch] != nil {
			for _, p := range r.Batch.ReliesOn {
				wanted[p] = true
			}
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	uuids := make([]uuid.UUID, 0, len(wanted))
	for p := range wanted {
		uuids = append(uuids, uuid.UUID(p))
	}
	var ids []int64
	err := eachOf(ctx, a.tx, selectPacks, uuids, func(scan func(...any) error) error {
		var id int64
		var name uuid.UUID
		err := scan(&id, &name)
		a.packs[backup.PackID(name)] = &packState{id: id}
		ids = append(ids, id)
		return err
	})
	if err != nil {
		return err
	}
	found, err := a.tx.lockedPacks(ctx, ids)
	if err != nil {
		return err
	}
	for name, p := range a.packs {
		condemned, there := found[p.id]
		if !there {
			delete(a.packs, name) // deleted after the lookup
		}
		p.condemned = condemned
	}
	return nil
}

// insertPacks registers packs and returns the ids of the new ones. It inserts them in the order of
// their names, so that two transactions do not wait for each other.
func (tx *Tx) insertPacks(ctx context.Context, stored map[backup.PackID]*backup.PackStored) (map[backup.PackID]int64, error) {
	names := slices.SortedFunc(maps.Keys(stored), func(a, b backup.PackID) int { return slices.Compare(a[:], b[:]) })
	ids := map[backup.PackID]int64{}
	now, err := tx.at(ctx, time.Time{})
	if err != nil {
		return nil, err
	}
	for group := range slices.Chunk(names, insertRows) {
		values := make([][]any, len(group))
		for i, name := range group {
			p := stored[name]
			values[i] = []any{uuid.UUID(name), uuid.UUID(p.Snapshot), uuid.UUID(name), p.StoredBytes, appendFrames(nil, p.FrameBytes), NotNull(p.Sums), len(p.Chunks), now.UnixMicro()}
		}
		query, args := tx.insertStatement("INSERT INTO packs (pack, snapshot, object, stored_bytes, frame_bytes, sums, chunks, noted) VALUES ", values,
			" ON CONFLICT (pack) DO NOTHING RETURNING pack, id")
		added, err := mapOf[uuid.UUID, int64](ctx, tx.Each, query, args...)
		if err != nil {
			return nil, err
		}
		for name, id := range added {
			ids[backup.PackID(name)] = id
		}
	}
	return ids, nil
}

const sharePacks = `SELECT id, condemned FROM packs WHERE {id in $1} ORDER BY id {for share}`

// lockedPacks locks packs in the order of their ids, and returns for each that exists whether it is
// condemned. It uses FOR SHARE, not FOR KEY SHARE, because condemning a pack changes no key.
func (tx *Tx) lockedPacks(ctx context.Context, ids []int64) (map[int64]bool, error) {
	slices.Sort(ids)
	ids = slices.Compact(ids)
	condemned := make(map[int64]bool, len(ids))
	err := eachOf(ctx, tx, sharePacks, ids, func(scan func(...any) error) error {
		var id int64
		var is bool
		err := scan(&id, &is)
		condemned[id] = is
		return err
	})
	return condemned, err
}

// JoinIDs concatenates ids.
func JoinIDs(ids []backup.ChunkID) []byte {
	b := make([]byte, 0, len(ids)*len(backup.ChunkID{}))
	for i := range ids {
		b = append(b, ids[i][:]...)
	}
	return b
}

// SplitIDs is the inverse of JoinIDs. It ignores what follows the last whole id.
func SplitIDs(b []byte) []backup.ChunkID {
	const size = len(backup.ChunkID{})
	ids := make([]backup.ChunkID, len(b)/size)
	for i := range ids {
		ids[i] = backup.ChunkID(b[i*size : (i+1)*size])
	}
	return ids
}
