package prune_test

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/pack"
	"github.com/bctl/bctl/internal/store"
)

func (m *world) claim(r *running) index.Claim {
	return index.Claim{Snapshots: []backup.SnapshotID{r.ID}, Lease: time.Millisecond, Limit: 100, Now: m.tick()}
}

func (r *running) send(m *message) { r.messages = append(r.messages, m) }

// reuse returns a listing to which a walker may refer: of a page of the base, or of an interrupted
// one.
func (m *world) reuse(s *shard) (content, bool) {
	m.Helper()
	var from []content
	if base := s.running.base; base != nil {
		from = slices.AppendSeq(from, maps.Values(base.pages))
	}
	from = slices.AppendSeq(from, maps.Values(m.interrupted(s)))
	if len(from) == 0 {
		return "", false
	}
	slices.Sort(from)
	return from[m.r.IntN(len(from))], true
}

// walk walks the open tasks of the running snapshot. The root task may leave some directories to
// others.
func (m *world) walk(s *shard) {
	m.Helper()
	m.walkAs(s, func(result *backup.SliceWalked, d string) func() { return m.walkDirectory(s, result, d) })
}

// walkAs walks the open tasks of the running snapshot; decide adds to a result what became of a
// directory.
func (m *world) walkAs(s *shard, decide func(result *backup.SliceWalked, d string) (change func())) {
	m.Helper()
	r := s.running
	tasks, err := m.x.ClaimTasks(m.ctx, m.claim(r))
	m.must(err)
	for _, task := range tasks {
		result := &backup.SliceWalked{Snapshot: r.ID, Task: task.ID, Attempt: task.Attempt, Last: true}
		var changes []func()
		names := task.Directories
		if task.Generation == 0 {
			names = slices.Clone(directories)
			for !m.exact && m.r.IntN(3) == 0 && len(names) > 1 {
				result.Children = append(result.Children, backup.Child{Directories: names[:1:1]})
				names = names[1:]
			}
		}
		for _, d := range names {
			if change := decide(result, d); change != nil {
				changes = append(changes, change)
			}
		}
		r.send(&message{Result: index.Result{Slice: result}, accepted: func() {
			for _, change := range changes {
				change()
			}
		}})
	}
}

// walkDirectory adds to a result what became of a directory.
func (m *world) walkDirectory(s *shard, result *backup.SliceWalked, d string) (change func()) {
	m.Helper()
	r := s.running
	_, has := r.base.page(d)
	switch m.r.IntN(8) {
	case 0:
		if has && m.r.IntN(2) == 0 {
			result.Removed = append(result.Removed, d)
			return func() { delete(r.pages, d) }
		}
		if has {
			result.Ended = append(result.Ended, backup.PageName{Path: d})
			return func() { delete(r.pages, d) }
		}
	case 1, 2: // moved, or interrupted
		if c, ok := m.reuse(s); ok {
			result.Pages = append(result.Pages, page(d, c))
			return func() { r.pages[d] = c }
		}
	case 3, 4, 5, 6:
		wanted := content("")
		if c, ok := m.reuse(s); ok && m.r.IntN(2) == 0 {
			wanted = c // some of its files are not read again
		}
		result.Batches = append(result.Batches, backup.PagesToRead{Pages: []backup.PageVersion{page(d, wanted)}})
	}
	return nil
}

func (s *snapshot) page(d string) (content, bool) {
	if s == nil {
		return "", false
	}
	c, ok := s.pages[d]
	return c, ok
}

// read reads one open batch: it looks for each new chunk, stores those that it has not found, and
// reports what it stored.
func (m *world) read(s *shard) {
	m.Helper()
	r := s.running
	batches, err := m.x.ClaimBatches(m.ctx, m.claim(r))
	m.must(err)
	if len(batches) == 0 {
		return
	}
	b := batches[m.r.IntN(len(batches))]
	var refs []int
	for range 1 + m.r.IntN(4) {
		n := 1 + m.r.IntN(dataChunks)
		if m.r.IntN(3) == 0 {
			n = listNumbers[m.r.IntN(len(listNumbers))]
		}
		refs = append(refs, n)
	}
	m.readBatch(s, b, refs...)
}

// readBatch reads a batch whose page has new content that refers to refs.
func (m *world) readBatch(s *shard, b backup.ReadBatch, refs ...int) {
	m.Helper()
	r := s.running
	d := b.Pages[0].Path
	c := contentOf(append(contentOfListing(b.Pages[0].Listing).chunks(), refs...)...)
	all := contentOf(refs...).all()
	stored := &backup.BatchStored{Snapshot: r.ID, Batch: b.ID, Attempt: b.Attempt, Pages: []backup.PageVersion{page(d, c)}}
	var ids []backup.ChunkID
	for _, n := range all {
		ids = append(ids, chunkID(n))
	}
	found, err := m.x.Locate(m.ctx, ids)
	m.must(err)
	var missing []int
	for i, l := range found {
		if id, known := m.known[all[i]]; known && b.Attempt <= 1 && !m.exact && m.r.IntN(6) == 0 { // the reader does not ask
			stored.ReliesOn = append(stored.ReliesOn, id)
			continue
		}
		if l == (index.Location{}) || !m.exact && m.r.IntN(6) == 0 { // or another reader stores it, too
			missing = append(missing, all[i])
		} else {
			stored.ReliesOn = append(stored.ReliesOn, l.Pack)
		}
	}
	lists := m.listsIn(r, all)
	for len(missing) > 0 {
		n := len(missing)
		if !m.exact && m.r.IntN(3) == 0 {
			n = 1 + m.r.IntN(n)
		}
		p := m.store(r, missing[:n])
		stored.ReliesOn = append(stored.ReliesOn, p.Pack)
		r.send(&message{Result: index.Result{Pack: p}})
		for _, stored := range missing[:n] {
			m.known[stored] = p.Pack
		}
		missing = missing[n:]
	}
	for _, l := range lists {
		r.send(&message{Result: index.Result{Lists: l}})
	}
	m.note("shard %d: batch %d of %q read as %s, relying on %s", s.ID, b.ID, d, c, stored.ReliesOn)
	r.send(&message{Result: index.Result{Batch: stored}, accepted: func() { r.pages[d] = c }})
}

// listsIn returns messages with the lists among chunks.
func (m *world) listsIn(r *running, chunks []int) (messages []*backup.ListsStored) {
	var list []backup.ChunkList
	for _, n := range chunks {
		if n <= dataChunks {
			continue
		}
		l := backup.ChunkList{List: chunkID(n), Nested: lists[n].depth > 1}
		for _, ref := range lists[n].refs {
			l.Chunks = append(l.Chunks, chunkID(ref))
		}
		list = append(list, l)
	}
	for len(list) > 0 {
		n := 1 + m.r.IntN(len(list))
		messages = append(messages, &backup.ListsStored{Snapshot: r.ID, Lists: list[:n:n]})
		list = list[n:]
	}
	return messages
}

// store writes a pack.
func (m *world) store(r *running, chunks []int) *backup.PackStored {
	m.Helper()
	p := &backup.PackStored{Snapshot: r.ID, Pack: m.newPackID()}
	w, err := pack.NewWriter(pack.KindData, repository, p.Pack, m.sealer, nil)
	m.must(err)
	for rest := chunks; len(rest) > 0; {
		n := 1 // chunks of a frame
		if !m.exact && len(rest) > 1 && m.r.IntN(4) == 0 {
			n = 2
		}
		frame := pack.Frame{RawLength: 100 * n}
		for i, chunk := range rest[:n] {
			id := chunkID(chunk)
			at := pack.Chunk{Offset: uint32(100 * i), Length: 100}
			copy(at.Hash[:], id[:])
			frame.Chunks = append(frame.Chunks, at)
			frame.Body = append(frame.Body, plaintext(id)...)
			p.Chunks = append(p.Chunks, backup.ChunkPlace{ID: id, Frame: uint32(len(w.FrameBytes())), Offset: at.Offset, Length: at.Length})
		}
		_, err := w.Add(frame)
		m.must(err)
		rest = rest[n:]
	}
	p.FrameBytes = slices.Clone(w.FrameBytes())
	data, err := w.Finish()
	m.must(err)
	p.StoredBytes = int64(len(data))
	m.must(m.s.Put(m.ctx, store.PackName(r.ID, p.Pack), data))
	m.note("pack %s: %d", p.Pack, chunks)
	return p
}

// deliver delivers some of the messages of a running snapshot, in any order.
func (m *world) deliver(r *running) {
	m.Helper()
	m.r.Shuffle(len(r.messages), func(i, j int) { r.messages[i], r.messages[j] = r.messages[j], r.messages[i] })
	n := 1 + m.r.IntN(3)
	m.deliverFirst(r, min(n, len(r.messages)))
}

// deliverFirst delivers the first n messages in one call.
func (m *world) deliverFirst(r *running, n int) {
	m.Helper()
	if n == 0 {
		return
	}
	group := slices.Clone(r.messages[:n])
	r.messages = r.messages[n:]
	results := make([]index.Result, n)
	for i := range group {
		results[i] = group[i].Result
	}
	outcomes, err := m.x.Apply(m.ctx, results)
	m.must(err)
	for i, o := range outcomes {
		sent := group[i]
		sent.tries++
		switch {
		case o.Late:
			m.counts["late"]++
		case o.Err == nil:
			m.note("accepted: %s", describe(sent))
			if sent.accepted != nil {
				sent.accepted()
			}
			if !m.exact && m.r.IntN(8) == 0 { // it is delivered again
				r.messages = append(r.messages, &message{Result: sent.Result, tries: sent.tries, accepted: func() {
					if sent.Pack == nil && sent.Lists == nil {
						m.fatalf("a result was accepted twice: %s", describe(sent))
					}
				}})
			}
		case errors.Is(o.Err, index.ErrCondemned):
			m.note("condemned: %s", describe(sent))
			m.counts["condemned batches"]++
		case errors.Is(o.Err, index.ErrPackUnknown), errors.Is(o.Err, index.ErrListUnknown):
			m.counts["early batches"]++
			if sent.tries < 6 {
				r.messages = append(r.messages, sent)
			} // otherwise the lease has run out, and the batch is read again
		default:
			m.fatalf("%s: %v", describe(sent), o.Err)
		}
	}
}

func describe(sent *message) string {
	switch {
	case sent.Slice != nil:
		return "slice"
	case sent.Pack != nil:
		return "pack " + sent.Pack.Pack.String()
	case sent.Lists != nil:
		return "lists"
	}
	return "batch for " + sent.Batch.Pages[0].Path
}

// deliverLate delivers a message of a snapshot that has ended: nothing changes.
func (m *world) deliverLate() {
	m.Helper()
	if len(m.late) == 0 {
		return
	}
	i := m.r.IntN(len(m.late))
	outcomes, err := m.x.Apply(m.ctx, []index.Result{m.late[i].Result})
	m.must(err)
	if !outcomes[0].Late {
		m.fatalf("%s of a snapshot that has ended: %+v, want it late", describe(m.late[i]), outcomes[0])
	}
	m.late = slices.Delete(m.late, i, i+1)
}
