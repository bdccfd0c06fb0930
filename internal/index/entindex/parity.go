package entindex

import (
	"context"
	"fmt"
	"iter"

	"github.com/google/uuid"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

const (
	selectParity  = `SELECT id, state, description, stored_bytes, damaged > 0 FROM parity_groups`
	insertParity  = `INSERT INTO parity_groups (id, state, description, stored_bytes) VALUES ($1, $2, $3, $4)`
	makeParity    = `UPDATE parity_groups SET state = 'valid', description = $2, stored_bytes = $3, noted = {now} WHERE id = $1 AND state = 'planned'`
	endParity     = `UPDATE parity_groups SET state = 'ended' WHERE id = $1`
	dropParity    = `DELETE FROM parity_groups WHERE id = $1 AND state <> 'valid'`
	dropAllParity = `DELETE FROM parity_groups`
	// Scrubs read the groups one after another.
	spreadParity = `UPDATE parity_groups SET noted = (SELECT forgotten FROM scrub) - $2 WHERE id = $1`
)

// ParityGroups implements index.Parity.
func (x *Index) ParityGroups(ctx context.Context) iter.Seq2[index.ParityGroup, error] {
	return sequence(func(each func(index.ParityGroup) error) error {
		return x.query(ctx, selectParity, nil, func(scan func(...any) error) error {
			var id uuid.UUID
			var state string
			var g index.ParityGroup
			if err := scan(&id, &state, &g.Description, &g.Bytes, &g.Suspect); err != nil {
				return err
			}
			g.ID, g.State = backup.PackID(id), index.ParityState(state)
			return each(g)
		})
	})
}

// PlanParity implements index.Parity.
func (x *Index) PlanParity(ctx context.Context, t index.Term, id backup.PackID) error {
	return x.changeParity(ctx, t, func(tx *Tx) error {
		return tx.exec(ctx, insertParity, uuid.UUID(id), string(index.ParityPlanned), []byte{}, 0)
	})
}

// ReplaceParity implements index.Parity.
func (x *Index) ReplaceParity(ctx context.Context, t index.Term, made []index.ParityGroup, ended []backup.PackID) error {
	return x.changeParity(ctx, t, func(tx *Tx) error {
		for i := range made {
			g := &made[i]
			switch n, err := tx.change(ctx, makeParity, uuid.UUID(g.ID), g.Description, g.Bytes); {
			case err != nil:
				return err
			case n != 1:
				return fmt.Errorf("parity group %s is not planned: %w", g.ID, backup.ErrInvalid)
			}
		}
		return tx.eachParity(ctx, endParity, ended)
	})
}

// DropParity implements index.Parity.
func (x *Index) DropParity(ctx context.Context, t index.Term, groups []backup.PackID) error {
	return x.changeParity(ctx, t, func(tx *Tx) error { return tx.eachParity(ctx, dropParity, groups) })
}

// RecoverParity implements index.Parity.
func (x *Index) RecoverParity(ctx context.Context, groups []index.ParityGroup) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if err := tx.exec(ctx, dropAllParity); err != nil {
			return err
		}
		for i := range groups {
			g := &groups[i]
			if err := tx.exec(ctx, insertParity, uuid.UUID(g.ID), string(g.State), g.Description, g.Bytes); err != nil {
				return err
			}
			if err := tx.exec(ctx, spreadParity, uuid.UUID(g.ID), i*1000); err != nil {
				return err
			}
		}
		return nil
	})
}

// changeParity runs a transaction of the leader.
func (x *Index) changeParity(ctx context.Context, t index.Term, do func(tx *Tx) error) error {
	return x.Backend.Update(ctx, Durable, func(ctx context.Context, tx *Tx) error {
		if err := tx.checkTerm(ctx, t); err != nil {
			return err
		}
		return do(tx)
	})
}

// eachParity runs a statement with each of the groups.
func (tx *Tx) eachParity(ctx context.Context, statement string, groups []backup.PackID) error {
	for _, id := range groups {
		if err := tx.exec(ctx, statement, uuid.UUID(id)); err != nil {
			return err
		}
	}
	return nil
}
