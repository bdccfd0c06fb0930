package prune_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/parity"
	"github.com/bctl/bctl/internal/prune"
	"github.com/bctl/bctl/internal/store"
)

// A process runs one pass. It stops before each call of the index or of the store until the
// scheduler lets it continue, so that anything can happen between two calls. It may also be killed
// there.
type process struct {
	name   string
	stops  func(call string) bool // whether it stops before this call
	at     string                 // the call before which it stopped
	parked chan struct{}          // it has stopped, or ended
	resume chan fault             // what becomes of the call
	fault  fault                  // of the call that is under way
	killed bool
	done   bool
	err    error
	result prune.Summary

	term   index.Term
	leads  bool
	called func(call string, shard backup.ShardID) // after each call that changes something
}

var (
	errKilled = errors.New("killed")
	errFailed = errors.New("failed")
)

// A fault is what goes wrong with a call.
type fault int

const (
	noFault      fault = iota
	killedBefore       // the process is killed before the call
	killedAfter        // the call does what it has to, and then the process is killed
	failed             // the call does nothing, and returns an error
	answerLost         // the call does what it has to, and returns an error
)

func (p *process) stop(call string) error {
	p.fault = noFault
	if !p.killed && p.stops(call) {
		p.at = call
		p.parked <- struct{}{}
		p.fault = <-p.resume
		p.killed = p.fault == killedBefore
	}
	switch {
	case p.killed:
		return errKilled
	case p.fault == failed:
		return errFailed
	}
	return nil
}

// answer returns the error of a call that stop has let through, and that returned err.
func (p *process) answer(err error) error {
	switch p.fault {
	case killedAfter:
		p.killed = true
		return errKilled
	case answerLost:
		return errFailed
	}
	return err
}

// alive returns an error if the process was killed.
func (p *process) alive() error {
	if p.killed {
		return errKilled
	}
	return nil
}

// start starts a pass, and returns when it has stopped before its first call.
func (m *world) start(name string, stops func(string) bool, memory int64, sweeps bool) *process {
	p := &process{name: name, stops: stops, parked: make(chan struct{}), resume: make(chan fault), called: m.called}
	layout := m.parity
	if layout != (parity.Layout{}) && m.r.IntN(3) == 0 {
		layout = parity.Layout{}
	}
	go func() {
		p.result, p.err = prune.Run(m.ctx, prune.Options{
			Parity: layout,
			Index:  &stoppedIndex{m.x, p}, Store: &stoppedStore{m.s, p, m.left}, Holder: name, Log: slog.New(slog.DiscardHandler), MemoryBytes: memory, Sweep: sweeps,
		})
		p.done = true
		p.parked <- struct{}{}
	}()
	<-p.parked
	return p
}

// step lets a process continue to its next stop.
func (p *process) step(kill bool) {
	if kill {
		p.meet(killedBefore)
	} else {
		p.meet(noFault)
	}
}

// meet is step with a fault of the next call.
func (p *process) meet(f fault) {
	p.resume <- f
	<-p.parked
}

// deletes reports whether the call before which a process has stopped deletes something.
func (p *process) deletes() bool {
	return slices.Contains([]string{"Move", "Delete", "DropPlaces", "DropLists", "DropPacks", "DropVersions", "Remove"}, p.at)
}

// run lets a process continue to its end.
func (p *process) run() {
	for !p.done {
		p.step(false)
	}
}

// A stoppedIndex is the index of a process.
type stoppedIndex struct {
	index.Index
	*process
}

// Lead is called once by a pass, and after that only by the goroutine that renews the term.
func (x *stoppedIndex) Lead(ctx context.Context, role, holder string, ttl time.Duration) (index.Term, bool, error) {
	if x.term == (index.Term{}) {
		if err := x.stop("Lead"); err != nil {
			return index.Term{}, false, err
		}
	}
	t, ok, err := x.Index.Lead(ctx, role, holder, ttl)
	if x.term == (index.Term{}) && ok {
		x.term, x.leads = t, true
	}
	return t, ok, err
}

func (x *stoppedIndex) Resign(ctx context.Context, t index.Term) error {
	if err := x.stop("Resign"); err != nil {
		return err
	}
	x.leads = false
	return x.Index.Resign(ctx, t)
}

func (x *stoppedIndex) Needed(ctx context.Context, without []backup.SnapshotID) (map[backup.ShardID][]backup.SnapshotNumber, error) {
	if err := x.stop("Needed"); err != nil {
		return nil, err
	}
	return x.Index.Needed(ctx, without)
}

func (x *stoppedIndex) DropVersions(ctx context.Context, shard backup.ShardID) (int64, error) {
	if err := x.stop("DropVersions"); err != nil {
		return 0, err
	}
	n, err := x.Index.DropVersions(ctx, shard)
	x.called("DropVersions", shard)
	return n, x.answer(err)
}

func (x *stoppedIndex) Gone(ctx context.Context, rows []int64) error {
	if err := x.stop("Gone"); err != nil {
		return err
	}
	return x.Index.Gone(ctx, rows)
}

func (x *stoppedIndex) Fence(ctx context.Context) (map[backup.ShardID]backup.SnapshotNumber, error) {
	if err := x.stop("Fence"); err != nil {
		return nil, err
	}
	return x.Index.Fence(ctx)
}

// stopEach stops before a sequence, and between its elements.
func stopEach[T any](p *process, call string, elements iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		if err := p.stop(call); err != nil {
			yield(none, err)
			return
		}
		stopWithin(p, call, elements)(yield)
	}
}

// stopWithin stops between the elements of a sequence.
func stopWithin[T any](p *process, call string, elements iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for v, err := range elements {
			if !yield(v, err) {
				return
			}
			if err := p.stop("within " + call); err != nil {
				var none T
				yield(none, err)
				return
			}
		}
	}
}

func (x *stoppedIndex) References(ctx context.Context, shard backup.ShardID, from backup.SnapshotNumber, needed []backup.SnapshotNumber) iter.Seq2[[]byte, error] {
	return stopEach(x.process, "References", x.Index.References(ctx, shard, from, needed))
}

func (x *stoppedIndex) HasLists(ctx context.Context, lists []backup.ChunkID) (bool, error) {
	if len(lists) > 0 {
		if err := x.stop("HasLists"); err != nil {
			return false, err
		}
	}
	return x.Index.HasLists(ctx, lists)
}

func (x *stoppedIndex) ChunkLists(ctx context.Context) iter.Seq2[backup.ChunkList, error] {
	return stopEach(x.process, "ChunkLists", x.Index.ChunkLists(ctx))
}

func (x *stoppedIndex) Places(ctx context.Context, rows []int64) iter.Seq2[index.PlaceOf, error] {
	return stopEach(x.process, "Places", x.Index.Places(ctx, rows))
}

func (x *stoppedIndex) Packs(ctx context.Context) iter.Seq2[index.Pack, error] {
	return stopEach(x.process, "Packs", x.Index.Packs(ctx))
}

func (x *stoppedIndex) Frames(ctx context.Context) iter.Seq2[index.PackFrames, error] {
	return stopEach(x.process, "Frames", x.Index.Frames(ctx))
}

func (x *stoppedIndex) Plan(ctx context.Context, t index.Term, snapshot backup.SnapshotID, object backup.PackID) (row int64, err error) {
	if err := x.stop("Plan"); err != nil {
		return 0, err
	}
	row, err = x.Index.Plan(ctx, t, snapshot, object)
	x.called("Plan", 0)
	return row, x.answer(err)
}

func (x *stoppedIndex) Move(ctx context.Context, t index.Term, m index.Move) error {
	if err := x.stop("Move"); err != nil {
		return err
	}
	err := x.Index.Move(ctx, t, m)
	x.called("Move", 0)
	return x.answer(err)
}

func (x *stoppedIndex) PlanParity(ctx context.Context, t index.Term, id backup.PackID) error {
	return x.change("PlanParity", []int64{0}, func() error { return x.Index.PlanParity(ctx, t, id) })
}

func (x *stoppedIndex) ReplaceParity(ctx context.Context, t index.Term, made []index.ParityGroup, ended []backup.PackID) error {
	return x.change("ReplaceParity", []int64{0}, func() error { return x.Index.ReplaceParity(ctx, t, made, ended) })
}

func (x *stoppedIndex) DropParity(ctx context.Context, t index.Term, groups []backup.PackID) error {
	return x.change("DropParity", []int64{0}, func() error { return x.Index.DropParity(ctx, t, groups) })
}

// change stops before a call that changes rows, and does not stop if there are none.
func (x *stoppedIndex) change(call string, rows []int64, do func() error) error {
	if len(rows) > 0 {
		if err := x.stop(call); err != nil {
			return err
		}
	}
	err := do()
	if len(rows) > 0 {
		x.called(call, 0)
		err = x.answer(err)
	}
	return err
}

func (x *stoppedIndex) Condemn(ctx context.Context, t index.Term, rows []int64) error {
	return x.change("Condemn", rows, func() error { return x.Index.Condemn(ctx, t, rows) })
}

func (x *stoppedIndex) Acquit(ctx context.Context, t index.Term, rows []int64) error {
	return x.change("Acquit", rows, func() error { return x.Index.Acquit(ctx, t, rows) })
}

func (x *stoppedIndex) Deleting(ctx context.Context, t index.Term, rows []int64) error {
	return x.change("Deleting", rows, func() error { return x.Index.Deleting(ctx, t, rows) })
}

// DropPlaces skips the digits that no chunk of the test has.
func (x *stoppedIndex) DropPlaces(ctx context.Context, rows []int64, digit byte) error {
	for _, d := range digits {
		if d == digit {
			return x.change("DropPlaces", rows, func() error { return x.Index.DropPlaces(ctx, rows, digit) })
		}
	}
	return nil
}

func (x *stoppedIndex) DropLists(ctx context.Context) error {
	if err := x.stop("DropLists"); err != nil {
		return err
	}
	return x.answer(x.Index.DropLists(ctx))
}

func (x *stoppedIndex) DropPacks(ctx context.Context, rows []int64) (n int, err error) {
	err = x.change("DropPacks", rows, func() error {
		n, err = x.Index.DropPacks(ctx, rows)
		return err
	})
	return n, err
}

func (x *stoppedIndex) Forgotten(ctx context.Context) ([]index.Forgotten, error) {
	if err := x.stop("Forgotten"); err != nil {
		return nil, err
	}
	return x.Index.Forgotten(ctx)
}

func (x *stoppedIndex) Remove(ctx context.Context, id backup.SnapshotID) error {
	if err := x.stop("Remove"); err != nil {
		return err
	}
	err := x.Index.Remove(ctx, id)
	x.called("Remove", 0)
	return x.answer(err)
}

func (x *stoppedIndex) Recognize(ctx context.Context, t index.Term, objects []index.StoredObject) ([]index.Recognized, error) {
	if err := x.stop("Recognize"); err != nil {
		return nil, err
	}
	return x.Index.Recognize(ctx, t, objects)
}

func (x *stoppedIndex) MayDelete(ctx context.Context, d index.Deletion) error {
	if err := x.alive(); err != nil {
		return err
	}
	return x.Index.MayDelete(ctx, d)
}

func (x *stoppedIndex) Deleted(ctx context.Context, d index.Deletion, complete bool) error {
	if err := x.alive(); err != nil {
		return err
	}
	return x.Index.Deleted(ctx, d, complete)
}

func (x *stoppedIndex) NotePrune(ctx context.Context, t index.Term, p index.Prune) error {
	if err := x.alive(); err != nil {
		return err
	}
	return x.Index.NotePrune(ctx, t, p)
}

func (x *stoppedIndex) SetNextSection(ctx context.Context, t index.Term, section int) error {
	if err := x.alive(); err != nil {
		return err
	}
	return x.Index.SetNextSection(ctx, t, section)
}

// A stoppedStore is the store of a process. It deletes one object at a time.
type stoppedStore struct {
	store.Store
	*process
	left map[string]bool // copies that no row names
}

// List stops only after objects, because most sections of a sweep have none.
func (s *stoppedStore) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return stopWithin(s.process, "List", s.Store.List(ctx, prefix))
}

// Put leaves a copy that no row names, if another pass has led since it was planned.
func (s *stoppedStore) Put(ctx context.Context, name string, data []byte) error {
	if err := s.stop("Put"); err != nil {
		return err
	}
	if !s.leads && strings.HasPrefix(name, store.PacksPrefix) {
		s.left[name] = true
	}
	return s.answer(s.Store.Put(ctx, name, data))
}

func (s *stoppedStore) GetRange(ctx context.Context, dst []byte, name string, offset, length int64) ([]byte, error) {
	if err := s.stop("GetRange"); err != nil {
		return dst, err
	}
	return s.Store.GetRange(ctx, dst, name, offset, length)
}

func (s *stoppedStore) Delete(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := s.stop("Delete"); err != nil {
			return err
		}
		err := s.Store.Delete(ctx, name)
		s.called("Delete", 0)
		if err := s.answer(err); err != nil {
			return err
		}
	}
	return nil
}
