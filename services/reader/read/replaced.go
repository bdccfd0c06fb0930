package read

import (
	"context"
	"sync"
	"time"
)

// An index in a server may be restored from an earlier dump while readers run. Such an index names
// packs that a prune has moved or deleted since the dump, and of which this process knows that the
// store had them. It does not know packs that this process has stored since.

// replacedEvery is how often the index is asked whether it was replaced.
const replacedEvery = time.Second

// An incarnation is that of the index from which this process knows what it remembers.
type incarnation struct {
	mu     sync.Mutex
	text   string
	known  bool
	looked time.Time
}

// forgetReplaced forgets what this process knows of packs if the index was replaced. If the index
// does not answer, the batch's own queries report that.
func (s *Service) forgetReplaced(ctx context.Context) {
	s.incarnation.mu.Lock()
	defer s.incarnation.mu.Unlock()
	if s.incarnation.known && time.Since(s.incarnation.looked) < replacedEvery {
		return
	}
	text, err := s.Index.Incarnation(ctx)
	if err != nil {
		return
	}
	changed := s.incarnation.known && text != s.incarnation.text
	s.incarnation.text, s.incarnation.known, s.incarnation.looked = text, true, time.Now()
	if changed {
		s.known.clear()
		s.packChecks.clear()
	}
}

// clear forgets all chunks.
func (k *known) clear() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.young)
	k.old = nil
}

// clear forgets the store's answers.
func (c *packChecks) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packs = nil
}
