package entindex

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent"
	"github.com/bctl/bctl/internal/index/ent/pack"
)

// A packState is a registered pack; condemned also if a pack that it depends on is.
type packState struct {
	id        int64
	condemned bool
}

// registerPacks registers the packs of all PackStored, with their chunks. A
// pack that is registered already has its chunks too, from the same transaction.
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
	rows, dependencies := chunkRows(stored, ids)
	if len(rows) > 0 {
		kept, err := a.tx.Hot.PutChunks(ctx, rows)
		if err != nil {
			return err
		}
		dependencies = append(dependencies, kept...)
	}
	return a.tx.insertDependencies(ctx, dependencies)
}

// chunkRows returns the places of the new packs' chunks, by chunk id. Of a
// chunk that is in two of them the first place is kept, and the other pack depends on that one.
func chunkRows(stored map[backup.PackID]*backup.PackStored, ids map[backup.PackID]int64) ([]ChunkRow, []Dependency) {
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
	slices.SortFunc(rows, func(a, b ChunkRow) int {
		if c := slices.Compare(a.ID[:], b.ID[:]); c != 0 {
			return c
		}
		return int(a.Pack - b.Pack)
	})
	var dependencies []Dependency
	kept := rows[:0]
	for _, row := range rows {
		if n := len(kept); n > 0 && kept[n-1].ID == row.ID {
			if kept[n-1].Pack != row.Pack {
				dependencies = append(dependencies, Dependency{row.Pack, kept[n-1].Pack})
			}
			continue
		}
		kept = append(kept, row)
	}
	return kept, dependencies
}

// lockPacks finds the packs that open batches rely on, and locks them and
// those that they depend on until the end of the transaction: who condemns a pack waits
// for the batch, or the batch sees it condemned (I6).
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
	for group := range slices.Chunk(uuids, listLength) {
		rows, err := a.tx.Pack.Query().Where(pack.PackIn(group...)).Select(pack.FieldID, pack.FieldPack).All(ctx)
		if err != nil {
			return err
		}
		for _, row := range rows {
			a.packs[backup.PackID(row.Pack)] = &packState{id: row.ID}
			ids = append(ids, row.ID)
		}
	}
	dependencies, err := a.tx.dependencies(ctx, ids)
	if err != nil {
		return err
	}
	for _, on := range dependencies {
		ids = append(ids, on...)
	}
	condemned, err := a.tx.condemnedPacks(ctx, ids)
	if err != nil {
		return err
	}
	for _, p := range a.packs {
		p.condemned = condemned[p.id] || slices.ContainsFunc(dependencies[p.id], func(id int64) bool { return condemned[id] })
	}
	return nil
}

// insertPacks registers packs, and returns the ids of those that are new. They are
// inserted in the order of their names, so that two transactions do not wait for each other.
func (tx *Tx) insertPacks(ctx context.Context, stored map[backup.PackID]*backup.PackStored) (map[backup.PackID]int64, error) {
	names := make([]backup.PackID, 0, len(stored))
	for name := range stored {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b backup.PackID) int { return slices.Compare(a[:], b[:]) })
	ids := map[backup.PackID]int64{}
	for group := range slices.Chunk(names, insertRows) {
		values := make([][]any, len(group))
		for i, name := range group {
			p := stored[name]
			values[i] = []any{uuid.UUID(name), uuid.UUID(p.Snapshot), p.StoredBytes, len(p.Chunks)}
		}
		rows, err := tx.insert(ctx, "INSERT INTO packs (pack, snapshot, stored_bytes, chunks) VALUES ", values,
			" ON CONFLICT (pack) DO NOTHING RETURNING id, pack")
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var id int64
			var name uuid.UUID
			if err := rows.Scan(&id, &name); err != nil {
				rows.Close()
				return nil, err
			}
			ids[backup.PackID(name)] = id
		}
		if err := closeRows(rows); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func (tx *Tx) insertDependencies(ctx context.Context, dependencies []Dependency) error {
	slices.SortFunc(dependencies, func(a, b Dependency) int {
		if a.Pack != b.Pack {
			return int(a.Pack - b.Pack)
		}
		return int(a.ReliesOn - b.ReliesOn)
	})
	for group := range slices.Chunk(slices.Compact(dependencies), insertRows) {
		values := make([][]any, len(group))
		for i, d := range group {
			values[i] = []any{d.Pack, d.ReliesOn}
		}
		rows, err := tx.insert(ctx, "INSERT INTO pack_dependencies (pack, relies_on) VALUES ", values, " ON CONFLICT DO NOTHING RETURNING pack")
		if err != nil {
			return err
		}
		if err := closeRows(rows); err != nil {
			return err
		}
	}
	return nil
}

// dependencies returns what packs depend on.
func (tx *Tx) dependencies(ctx context.Context, packs []int64) (map[int64][]int64, error) {
	on := map[int64][]int64{}
	for group := range slices.Chunk(packs, listLength) {
		rows, err := tx.QueryContext(ctx, "SELECT pack, relies_on FROM pack_dependencies WHERE "+tx.In("pack", 1), tx.List(group))
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var d Dependency
			if err := rows.Scan(&d.Pack, &d.ReliesOn); err != nil {
				rows.Close()
				return nil, err
			}
			on[d.Pack] = append(on[d.Pack], d.ReliesOn)
		}
		if err := closeRows(rows); err != nil {
			return nil, err
		}
	}
	return on, nil
}

// condemnedPacks locks packs in the order of their ids and returns which are
// condemned. FOR SHARE, not FOR KEY SHARE: condemning changes no key. One that is gone is condemned.
func (tx *Tx) condemnedPacks(ctx context.Context, ids []int64) (map[int64]bool, error) {
	slices.Sort(ids)
	ids = slices.Compact(ids)
	condemned := make(map[int64]bool, len(ids))
	for _, id := range ids {
		condemned[id] = true
	}
	for group := range slices.Chunk(ids, listLength) {
		rows, err := tx.QueryContext(ctx, "SELECT id, condemned FROM packs WHERE "+tx.In("id", 1)+" ORDER BY id"+tx.ForShare, tx.List(group))
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var p ent.Pack
			if err := rows.Scan(&p.ID, &p.Condemned); err != nil {
				rows.Close()
				return nil, err
			}
			condemned[p.ID] = p.Condemned
		}
		if err := closeRows(rows); err != nil {
			return nil, err
		}
	}
	return condemned, nil
}
