package read

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// A failure caused by the end of the context is not reported as a failure of NATS: the end was
// requested.
func TestSendingIsSilentAtTheEnd(t *testing.T) {
	for _, ended := range []bool{false, true} {
		var log bytes.Buffer
		s := &Service{opts: Options{Log: slog.New(slog.NewTextHandler(&log, nil))}}
		ctx, end := context.WithCancel(t.Context())
		sent := 0
		err := s.untilSent(ctx, "pack", func() error {
			sent++
			if ended || sent > 1 {
				end()
			}
			return fmt.Errorf("nats: %w", backup.ErrUnavailable)
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if logged := log.Len() > 0; logged == ended {
			t.Errorf("the context had ended: %v; logged %q", ended, log.String())
		}
	}
}
