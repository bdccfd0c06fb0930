package sqliteindex

import (
	"context"
	"sync"
	"time"
)

const (
	// giveWayFactor is for how many times the duration of its work a caller of GiveWay waits.
	giveWayFactor = 40
	maxGiveWay    = 2 * time.Second
	// othersWrite is for how long another process is expected to write again after it has written.
	othersWrite = 2 * time.Second
	checkOthers = 20 * time.Millisecond
	// giveWayAfter is after how much reading a reader of whole tables calls GiveWay.
	giveWayAfter = 10 * time.Millisecond
)

// others knows whether other processes need the database: a backup.
type others struct {
	mutex   sync.Mutex
	need    func() (bool, error) // see GiveWayWhile
	version int64                // as of the writer's connection; it changes when another connection commits
	known   bool                 // version is
	checked time.Time
	wrote   time.Time // when version was seen to have changed
	needed  bool      // what need last returned
}

// GiveWayWhile makes long work in the background give way not only while another process writes to
// the database, but also while needed returns true. It is called 50 times per second at most.
func (x *Index) GiveWayWhile(needed func() (bool, error)) {
	o := &x.backend.others
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.need = needed
}

// GiveWay implements entindex.Backend. SQLite has one writer, and who waits for it is not in a
// queue: a process that writes again at once would keep all others out. A backup also needs the
// processors, so readers of whole tables give way, too.
func (b *backend) GiveWay(ctx context.Context, worked time.Duration) (bool, error) {
	busy, err := b.othersNeed(ctx)
	if err != nil || !busy {
		return false, err
	}
	timer := time.NewTimer(min(giveWayFactor*worked, maxGiveWay))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true, nil
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
}

func (b *backend) othersNeed(ctx context.Context) (bool, error) {
	if b.writer == nil { // a reader gives way to nobody
		return false, nil
	}
	o := &b.others
	o.mutex.Lock()
	defer o.mutex.Unlock()
	now := time.Now()
	if now.Sub(o.checked) >= checkOthers {
		if err := o.check(ctx, b, now); err != nil {
			return false, err
		}
	}
	return o.needed || !o.wrote.IsZero() && now.Sub(o.wrote) < othersWrite, nil
}

// check does not wait for the writer. Whoever has the writer may wait for another process, and that
// process may wait for a reader of this one.
func (o *others) check(ctx context.Context, b *backend, now time.Time) (err error) {
	o.checked = now
	if o.need != nil {
		if o.needed, err = o.need(); err != nil {
			return err
		}
	}
	select {
	case b.turn <- struct{}{}:
	default:
		return nil
	}
	defer b.give()
	var version int64
	if err := b.writer.QueryRowContext(ctx, "PRAGMA data_version").Scan(&version); err != nil {
		return b.Wrap(err)
	}
	if o.known && version != o.version {
		o.wrote = now
	}
	o.version, o.known = version, true
	return nil
}

// A worker calls giveWay now and then, while it has no transaction open.
type worker struct {
	*backend
	since time.Time
}

func (w *worker) giveWay(ctx context.Context) error {
	if w.since.IsZero() {
		w.since = time.Now()
	}
	worked := time.Since(w.since)
	if worked < giveWayAfter {
		return nil
	}
	_, err := w.GiveWay(ctx, worked)
	w.since = time.Now()
	return err
}
