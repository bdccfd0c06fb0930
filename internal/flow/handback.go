package flow

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	bctlv1 "github.com/bctl/bctl/proto/bctl/v1"
)

// A HandBack is work that a worker has handed back lately because of the same error.
type HandBack struct {
	Why       string // "": several errors, for which there was no room
	Times     int
	Unseen    bool // the worker sees another tree than the snapshots are of, or none
	Snapshots []backup.SnapshotID
}

// Has reports whether work of a snapshot was handed back.
func (h *HandBack) Has(id backup.SnapshotID) bool { return slices.Contains(h.Snapshots, id) }

const (
	// troubleLasts is how long a worker's reports mention the work that it has handed back.
	troubleLasts = time.Minute
	// maxHandBacks bounds the snapshots and errors that a worker remembers.
	maxHandBacks = 64
	// maxErrors is the number of errors in a description, each of at most maxErrorBytes.
	maxErrors     = 6
	maxErrorBytes = 320
)

// handBacks counts failed attempts. A pause longer than troubleLasts resets the count.
type handBacks struct {
	times int
	last  time.Time
	why   string
	of    map[handBackOf]*handedBack
}

// A handBackOf is what failed attempts have in common.
type handBackOf struct {
	snapshot backup.SnapshotID
	why      string
	unseen   bool
}

type handedBack struct {
	times int
	last  time.Time
}

func (h *handBacks) add(now time.Time, snapshot backup.SnapshotID, err error, unseen bool) {
	if now.Sub(h.last) > troubleLasts {
		h.times = 0
	}
	h.times, h.last, h.why = h.times+1, now, err.Error()
	h.expire(now)
	if h.of == nil {
		h.of = map[handBackOf]*handedBack{}
	}
	of := handBackOf{snapshot, cut(text(h.why), maxErrorBytes), unseen}
	if h.of[of] == nil {
		h.makeRoom()
		h.of[of] = &handedBack{}
	}
	h.of[of].times++
	h.of[of].last = now
}

func (h *handBacks) expire(now time.Time) {
	for of, b := range h.of {
		if now.Sub(b.last) > troubleLasts {
			delete(h.of, of)
		}
	}
}

// makeRoom forgets the oldest if there are too many.
func (h *handBacks) makeRoom() {
	var oldest handBackOf
	for of, b := range h.of {
		if first := h.of[oldest]; first == nil || b.last.Before(first.last) {
			oldest = of
		}
	}
	if len(h.of) >= maxHandBacks {
		delete(h.of, oldest)
	}
}

// saw forgets that the tree of a snapshot was not seen.
func (h *handBacks) saw(snapshot backup.SnapshotID) {
	for of := range h.of {
		if of.snapshot == snapshot && of.unseen {
			delete(h.of, of)
		}
	}
}

// describe adds to the description of an instance what it has handed back: the most frequent errors
// first, and the rest together.
func (h *handBacks) describe(now time.Time, i *Instance) {
	if i.HandedBack, i.HandedBackWhy = 0, ""; now.Sub(h.last) <= troubleLasts {
		i.HandedBack, i.HandedBackWhy = h.times, h.why
	}
	h.expire(now)
	type kind struct {
		why    string
		unseen bool
	}
	by := map[kind]*HandBack{}
	for of, b := range h.of {
		k := kind{of.why, of.unseen}
		if by[k] == nil {
			by[k] = &HandBack{Why: of.why, Unseen: of.unseen}
		}
		by[k].Times += b.times
		by[k].Snapshots = append(by[k].Snapshots, of.snapshot)
	}
	i.HandBacks = nil
	for _, b := range by {
		slices.SortFunc(b.Snapshots, compareIDs)
		i.HandBacks = append(i.HandBacks, *b)
	}
	slices.SortFunc(i.HandBacks, func(a, b HandBack) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Why, b.Why), compareIDs(a.Snapshots[0], b.Snapshots[0]))
	})
	if len(i.HandBacks) > maxErrors {
		i.HandBacks = append(i.HandBacks[:maxErrors:maxErrors], together(i.HandBacks[maxErrors:])...)
	}
}

func compareIDs(a, b backup.SnapshotID) int { return bytes.Compare(a[:], b[:]) }

// together combines hand-backs for which there is no room.
func together(more []HandBack) (list []HandBack) {
	for _, unseen := range []bool{true, false} {
		all := HandBack{Unseen: unseen}
		for n := range more {
			if more[n].Unseen != unseen {
				continue
			}
			all.Times += more[n].Times
			all.Snapshots = append(all.Snapshots, more[n].Snapshots...)
		}
		if all.Times > 0 {
			slices.SortFunc(all.Snapshots, compareIDs)
			all.Snapshots = slices.Compact(all.Snapshots)
			list = append(list, all)
		}
	}
	return list
}

// HandedBack records that an attempt at a task or batch of a snapshot has failed. Any worker may
// make the next one. unseen means that this worker sees another tree than the snapshot is of, or
// none.
func (r *Reporter) HandedBack(snapshot backup.SnapshotID, err error, unseen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.back.add(time.Now(), snapshot, err, unseen)
}

// Saw records that an attempt at a task or batch of a snapshot has found its tree.
func (r *Reporter) Saw(snapshot backup.SnapshotID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.back.saw(snapshot)
}

func handBacksToWire(list []HandBack) (wire []*bctlv1.HandBack) {
	for n := range list[:min(len(list), maxErrors+2)] {
		h := &list[n]
		m := &bctlv1.HandBack{Why: cut(text(h.Why), maxErrorBytes), Times: int64(h.Times), Unseen: h.Unseen}
		for _, id := range h.Snapshots[:min(len(h.Snapshots), maxHandBacks)] {
			m.SnapshotIds = append(m.SnapshotIds, id[:])
		}
		wire = append(wire, m)
	}
	return wire
}

func handBacksFromWire(list []*bctlv1.HandBack) (found []HandBack, err error) {
	if len(list) > maxErrors+2 {
		return nil, fmt.Errorf("a service has handed work back because of %d errors: %w", len(list), backup.ErrInvalid)
	}
	for _, m := range list {
		h := HandBack{Why: m.GetWhy(), Times: int(m.GetTimes()), Unseen: m.GetUnseen()}
		if len(h.Why) > maxErrorBytes || m.GetTimes() < 0 || m.GetTimes() > math.MaxInt32 || len(m.GetSnapshotIds()) > maxHandBacks {
			return nil, fmt.Errorf("what a service has handed back is too much: %w", backup.ErrInvalid)
		}
		for _, id := range m.GetSnapshotIds() {
			var s backup.SnapshotID
			if len(id) != len(s) {
				return nil, fmt.Errorf("a service has handed back work of snapshot %x: %w", id, backup.ErrInvalid)
			}
			copy(s[:], id)
			h.Snapshots = append(h.Snapshots, s)
		}
		found = append(found, h)
	}
	return found, nil
}
