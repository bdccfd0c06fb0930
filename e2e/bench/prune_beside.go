//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// A besidePrune is one backup after snapshots were forgotten, and the same
// backup while their space is freed.
type besidePrune struct {
	Alone   float64 `json:"backup_seconds"`
	Beside  float64 `json:"backup_beside_seconds"`
	Prunes  int     `json:"prunes"`  // that have ended while the backup ran
	Overlap float64 `json:"overlap"` // share of the backup during which a prune ran
}

// copyOf copies a tool's repository.
func (b *bench) copyOf(ctx context.Context, t *tool) (*place, error) {
	p := *b.places[t.name]
	repo, err := os.MkdirTemp(b.work, filepath.Base(p.repo)+"-copy-")
	if err != nil {
		return nil, err
	}
	p.repo = filepath.Join(repo, "repo")
	return &p, errors.Join(exec.CommandContext(ctx, "cp", "-a", b.places[t.name].repo, p.repo).Run(), settle(b.work))
}

func removeCopy(p *place) error {
	if p == nil {
		return nil
	}
	return os.RemoveAll(filepath.Dir(p.repo))
}

// besides measures a backup of the tree as it is, alone and beside prunes, in an order that changes
// from round to round. Each uses a copy of its own, in which the same snapshots are forgotten: a
// backup may have more to do after that, and it does not owe this to the prune.
func (b *bench) besides(ctx context.Context, t pruner, round int) (of besidePrune, err error) {
	for n := range 2 {
		p, err := b.copyOf(ctx, t.tool)
		if err == nil {
			_, err = b.run(ctx, t.forget(*p), t.environment(*p))
		}
		if err == nil && (n+round)%2 == 0 {
			var m sample
			m, err = b.backup(ctx, t.tool, p)
			of.Alone = m.WallSeconds
		} else if err == nil {
			err = b.backupBeside(ctx, t, p, &of)
		}
		if err := errors.Join(err, removeCopy(p)); err != nil {
			return of, err
		}
	}
	return of, nil
}

// backupBeside measures a backup while prunes run. The first prune deletes. Each time a prune ends,
// another one begins, until the backup ends.
func (b *bench) backupBeside(ctx context.Context, t pruner, p *place, of *besidePrune) error {
	const headStart = 200 * time.Millisecond
	done := make(chan struct{})
	var began, ended time.Time
	var ran [][2]time.Time
	var both errgroup.Group
	both.Go(func() error {
		for {
			from := time.Now()
			if _, err := b.run(ctx, t.prune(*p), t.environment(*p)); err != nil {
				return err
			}
			ran = append(ran, [2]time.Time{from, time.Now()})
			select {
			case <-done:
				return nil
			default:
			}
		}
	})
	both.Go(func() error {
		defer close(done)
		if err := passFor(ctx, headStart); err != nil {
			return err
		}
		began = time.Now()
		_, err := b.backup(ctx, t.tool, p)
		ended = time.Now()
		return err
	})
	if err := both.Wait(); err != nil {
		return err
	}
	of.Beside = ended.Sub(began).Seconds()
	var overlap time.Duration
	for _, r := range ran {
		if r[1].Before(ended) {
			of.Prunes++
		}
		overlap += max(0, minTime(r[1], ended).Sub(maxTime(r[0], began)))
	}
	of.Overlap = overlap.Seconds() / of.Beside
	return nil
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
