package read

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/bctl/bctl/internal/loop"
)

// refusedEvery is the interval at which a request to the store checks whether the store refuses
// writes.
const refusedEvery = 500 * time.Millisecond

// A refusedError is why the store refuses writes: the batch is handed back, to a reader whose store
// accepts them. It does not wrap the reason, which says nothing about the object of the request.
type refusedError struct{ why error }

func (r refusedError) Error() string { return r.why.Error() }

func isRefused(err error) bool {
	_, ok := errors.AsType[refusedError](err)
	return ok
}

// refused returns why no batch can be stored at present; nil if batches can.
func (s *Service) refused() error {
	if why := s.opts.Refused(); why != nil {
		return refusedError{why}
	}
	return nil
}

// whileAccepted makes a request to the store. The store's client repeats a failed request for
// minutes, because an outage may end. whileAccepted does not wait for that once the store is known
// to refuse writes: other readers may have another store, or other credentials. A write that is
// given up may nevertheless be carried out, and leaves an orphan.
func (s *Service) whileAccepted(ctx context.Context, request func(context.Context) error) error {
	if err := s.refused(); err != nil {
		return err
	}
	asking, cancel := context.WithCancel(ctx)
	var refused error
	var watching sync.WaitGroup
	watching.Go(func() {
		loop.Every(asking, refusedEvery, func() {
			if err := s.refused(); err != nil {
				refused = err
				cancel()
			}
		})
	})
	err := request(asking)
	cancel()
	watching.Wait()
	if err != nil && refused != nil {
		return refused
	}
	return err
}
