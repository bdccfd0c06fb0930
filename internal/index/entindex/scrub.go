package entindex

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// dueAfter is the time, in thousandths of the time that is allowed, after which something is proven
// again. It depends on a number, so that it spreads what was noted at one time, or one after
// another.
func dueAfter(number string) string {
	return `CASE WHEN proven = 0 THEN (` + number + `) * 619 % 1000 * 19 / 20 ELSE 700 + (` + number + `) * 619 % 1000 / 4 END`
}

var selectDue = packToProve + `(` + since + ` < $1 OR damaged = 0 AND ` + since + ` + (SELECT within FROM scrub) * 1000 * (` + dueAfter("id") + `) <= $2 OR damaged <> 0 AND damaged < $3) ORDER BY 11, 1 LIMIT $4`

const (
	// held is when a pack, or a part of the journal or of parity, was proven or noted.
	held = `CASE WHEN proven > noted THEN proven ELSE noted END`
	// since is when a pack was noted, proven, or found to be damaged.
	since = `CASE WHEN damaged > noted AND damaged > proven THEN damaged ELSE ` + held + ` END`
	// undated is true of what was never proven, and was stored at a time that is not known.
	undated     = `proven = 0 AND noted <= (SELECT forgotten FROM scrub)`
	undatedPack = `proven = 0 AND (adopted OR length(sums) = 0 OR noted <= (SELECT forgotten FROM scrub))`

	scrubSettings       = `within, bytes, requests, price_requests, price_bytes, spend`
	selectScrubSettings = `SELECT ` + scrubSettings + ` FROM scrub`

	selectScrub = `SELECT ` + scrubSettings + `, CASE WHEN day_began BETWEEN $1 AND $2 THEN day_bytes ELSE 0 END,
    CASE WHEN day_began BETWEEN $1 AND $2 THEN day_requests ELSE 0 END FROM scrub`
	selectProven = `
SELECT count(*), coalesce(CAST(sum(stored_bytes) AS bigint), 0),
    coalesce(sum(CASE WHEN proven = 0 THEN 1 ELSE 0 END), 0), coalesce(CAST(sum(CASE WHEN proven = 0 THEN stored_bytes ELSE 0 END) AS bigint), 0),
    coalesce(sum(CASE WHEN length(sums) = 0 THEN 1 ELSE 0 END), 0), coalesce(sum(CASE WHEN adopted THEN 1 ELSE 0 END), 0),
    coalesce(sum(CASE WHEN damaged <> 0 THEN 1 ELSE 0 END), 0), coalesce(CAST(sum(CASE WHEN damaged <> 0 THEN stored_bytes ELSE 0 END) AS bigint), 0),
    coalesce(sum(CASE WHEN damaged = 0 AND ` + since + ` < $1 THEN 1 ELSE 0 END), 0),
    coalesce(CAST(sum(CASE WHEN damaged = 0 AND ` + since + ` < $1 THEN stored_bytes ELSE 0 END) AS bigint), 0),
    coalesce(sum(CASE WHEN damaged = 0 AND ` + undatedPack + ` THEN 1 ELSE 0 END), 0),
    coalesce(CAST(sum(CASE WHEN damaged = 0 AND ` + undatedPack + ` THEN stored_bytes ELSE 0 END) AS bigint), 0),
    coalesce(min(CASE WHEN damaged = 0 AND NOT (` + undatedPack + `) THEN ` + since + ` END), 0)
FROM packs WHERE NOT condemned`
	updateScrub = `UPDATE scrub SET within = $1, bytes = $2, requests = $3, price_requests = $4, price_bytes = $5, spend = $6`

	packToProve = `SELECT id, pack, snapshot, object, object_offset, stored_bytes, sealed, frame_bytes, sums, adopted, ` + since + `, damage FROM packs WHERE NOT condemned AND `

	selectDamaged = packToProve + `damaged <> 0 ORDER BY id`
	selectToProve = packToProve + `{id in $1} ORDER BY id`

	noteProofs = `
UPDATE packs AS k SET proven = CASE WHEN r.result = 'proven' THEN {now} ELSE k.proven END,
    noted = CASE WHEN r.result = 'adopted' THEN {now} ELSE k.noted END, adopted = k.adopted OR r.result = 'adopted',
    sums = CASE WHEN r.result = 'adopted' THEN {unhex r.sums} ELSE k.sums END,
    damaged = CASE WHEN r.result = 'damaged' THEN {now} ELSE 0 END, damage = r.damage
FROM {rows $1 AS r (id bigint, result text, sums text, damage text)} WHERE k.id = r.id AND NOT k.condemned`
	forgetAdopted = `UPDATE packs SET sums = $2, adopted = false, damaged = 0, damage = '', noted = {now} WHERE adopted AND {id in $1}`
	forgetProofs  = `UPDATE packs SET proven = 0, damaged = 0, damage = '', noted = {now}`
	forgottenNow  = `UPDATE scrub SET forgotten = {now}`
	selectPutBack = `SELECT source, objects, bytes, last FROM put_back ORDER BY source`
	addPutBack    = `UPDATE put_back SET objects = objects + $2, bytes = bytes + $3, last = {now} WHERE source = $1`

	inDay     = `day_began BETWEEN {now} - $1 AND {now}`
	countRead = `
UPDATE scrub SET day_bytes = CASE WHEN ` + inDay + ` THEN day_bytes ELSE 0 END + $2,
    day_requests = CASE WHEN ` + inDay + ` THEN day_requests ELSE 0 END + $3,
    day_began = CASE WHEN ` + inDay + ` THEN day_began ELSE {now} END`
)

// Scrub implements index.Scrubbing.
func (x *Index) Scrub(ctx context.Context) (s index.Scrub, err error) {
	if s.Now, err = x.Backend.Clock(ctx); err != nil {
		return s, err
	}
	err = x.query(ctx, selectScrub, []any{s.Now.Add(-index.ScrubDay).UnixMicro(), s.Now.UnixMicro()}, func(scan func(...any) error) error {
		return readScrubSettings(scan, &s.ScrubSettings, &s.Today.Bytes, &s.Today.Requests)
	})
	if err != nil {
		return s, err
	}
	err = x.query(ctx, selectProven, []any{s.Now.Add(-s.Within).UnixMicro()}, func(scan func(...any) error) error {
		var oldest int64
		err := scan(&s.Packs, &s.Bytes, &s.UnprovenPacks, &s.UnprovenBytes, &s.UnknownPacks, &s.AdoptedPacks, &s.DamagedPacks, &s.DamagedBytes,
			&s.LatePacks, &s.LateBytes, &s.UndatedPacks, &s.UndatedBytes, &oldest)
		s.Oldest = fromMicros(oldest)
		return err
	})
	if err != nil {
		return s, err
	}
	if s.Journal, err = x.scrubParts(ctx, selectJournal, &s); err != nil {
		return s, err
	}
	if s.Parity, err = x.scrubParts(ctx, selectParityProven, &s); err != nil {
		return s, err
	}
	err = x.query(ctx, selectParityBytes, nil, func(scan func(...any) error) error { return scan(&s.ParityBytes) })
	if err == nil {
		s.PutBack, err = listOf(ctx, x.query, selectPutBack, nil, readPutBack)
	}
	return s, err
}

// ScrubSettings implements index.Scrubbing.
func (x *Index) ScrubSettings(ctx context.Context) (s index.ScrubSettings, err error) {
	err = x.query(ctx, selectScrubSettings, nil, func(scan func(...any) error) error { return readScrubSettings(scan, &s) })
	return s, err
}

// readScrubSettings reads a row of scrubSettings and more columns.
func readScrubSettings(scan func(...any) error, s *index.ScrubSettings, more ...any) error {
	var within int64
	err := scan(append([]any{&within, &s.PerDay.Bytes, &s.PerDay.Requests, &s.Prices.Requests, &s.Prices.Bytes, &s.Spend}, more...)...)
	s.Within = time.Duration(within) * time.Second
	return err
}

func readPutBack(scan func(...any) error) (p index.PutBackTotal, err error) {
	var last int64
	err = scan(&p.Source, &p.Objects, &p.Bytes, &last)
	p.Last = fromMicros(last)
	return p, err
}

// NotePutBack implements index.Parity.
func (x *Index) NotePutBack(ctx context.Context, from index.PutBackSource, objects int, bytes int64) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		return tx.exec(ctx, addPutBack, string(from), objects, bytes)
	})
}

// SetScrub implements index.Scrubbing.
func (x *Index) SetScrub(ctx context.Context, s index.ScrubSettings, by string) error {
	if err := s.Check(); err != nil {
		return err
	}
	if err := checkReason(by, ""); err != nil {
		return err
	}
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if err := tx.exec(ctx, updateScrub, int64(s.Within/time.Second), s.PerDay.Bytes, s.PerDay.Requests, int64(s.Prices.Requests), int64(s.Prices.Bytes), int64(s.Spend)); err != nil {
			return err
		}
		return tx.writeLog(ctx, by, actionScrub, "scrub", fmt.Sprintf("proven within %s; a day, %d bytes, %d requests and a cost of %s at most (0: no limit), with %s for 1,000 requests and %s for 1 GiB",
			s.Within, s.PerDay.Bytes, s.PerDay.Requests, s.Spend, s.Prices.Requests, s.Prices.Bytes))
	})
}

// ToProve implements index.Scrubbing.
func (x *Index) ToProve(ctx context.Context, before time.Time, limit int) ([]index.PackToProve, error) {
	args, err := x.dueAt(ctx, before)
	if err != nil {
		return nil, err
	}
	return listOf(ctx, x.query, selectDue, append(args, limit), readPackToProve)
}

// dueAt returns the arguments of a search for what is due: all that was proven before a time; now;
// and the time before which what is damaged was found to be so.
func (x *Index) dueAt(ctx context.Context, before time.Time) ([]any, error) {
	now, err := x.Backend.Clock(ctx)
	if err != nil {
		return nil, err
	}
	micros := int64(0)
	if !before.IsZero() {
		micros = before.UnixMicro()
	}
	return []any{micros, now.UnixMicro(), now.Add(-index.ScrubDay).UnixMicro()}, nil
}

// DamagedPacks implements index.Scrubbing.
func (x *Index) DamagedPacks(ctx context.Context) ([]index.PackToProve, error) {
	return listOf(ctx, x.query, selectDamaged, nil, readPackToProve)
}

// PacksToProve implements index.Pruning.
func (x *Index) PacksToProve(ctx context.Context, rows []int64) (packs []index.PackToProve, err error) {
	for group := range slices.Chunk(slices.Sorted(slices.Values(rows)), listLength) {
		err := x.queryOf(ctx, selectToProve, group, func(scan func(...any) error) error {
			p, err := readPackToProve(scan)
			packs = append(packs, p)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return packs, nil
}

func readPackToProve(scan func(...any) error) (p index.PackToProve, err error) {
	var pack, snapshot, object uuid.UUID
	var sealed uuid.NullUUID
	var frames []byte
	var since int64
	if err := scan(&p.Row, &pack, &snapshot, &object, &p.Offset, &p.Bytes, &sealed, &frames, &p.Sums, &p.Adopted, &since, &p.Damage); err != nil {
		return p, err
	}
	p.Pack, p.Snapshot, p.Object, p.Sealed = backup.PackID(pack), backup.SnapshotID(snapshot), backup.PackID(object), backup.PackID(sealed.UUID)
	p.Since = fromMicros(since)
	p.FrameBytes, err = framesOf(p.Row, frames)
	return p, err
}

// ForgetProofs implements index.Recovering.
func (x *Index) ForgetProofs(ctx context.Context) error {
	return x.Backend.Update(ctx, Relaxed, func(ctx context.Context, tx *Tx) error {
		return errors.Join(tx.exec(ctx, forgetProofs), tx.exec(ctx, forgetJournalProofs), tx.exec(ctx, forgetParityProofs), tx.exec(ctx, forgottenNow))
	})
}

// A proofRow is a proof as NoteProofs sends it to the database.
type proofRow struct {
	ID     int64  `json:"id"`
	Result string `json:"result"`
	Sums   string `json:"sums"`
	Damage string `json:"damage"`
}

// NoteProofs implements index.Scrubbing. It locks packs in the order of their ids, in which batches
// lock them too. It need not be durable: what is lost is proven again.
func (x *Index) NoteProofs(ctx context.Context, t index.Term, proofs []index.Proof, read index.ScrubCost) error {
	rows, ids := make([]proofRow, len(proofs)), make([]int64, len(proofs))
	for i, p := range proofs {
		ids[i], rows[i] = p.Row, proofRow{ID: p.Row, Result: "proven"}
		switch {
		case p.Damage != "":
			rows[i].Result, rows[i].Damage = "damaged", text(p.Damage, maxErrorBytes)
		case p.Adopt != nil:
			rows[i].Result, rows[i].Sums = "adopted", hex.EncodeToString(p.Adopt)
		}
	}
	slices.Sort(ids)
	list, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return x.noteScrub(ctx, t, read, func(ctx context.Context, tx *Tx) error {
		if err := eachOf(ctx, tx, lockPackRows, ids, func(func(...any) error) error { return nil }); err != nil {
			return err
		}
		if len(rows) == 0 {
			return nil
		}
		return tx.exec(ctx, noteProofs, string(list))
	})
}
