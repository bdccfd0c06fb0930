package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/index/pgindex"
)

// A server that accepts connections and does not answer is unavailable after a time, instead of
// keeping a command for ever.
func TestIndexThatHangsIsUnavailable(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	within := 100 * time.Millisecond
	open := func(ctx context.Context) error {
		_, err := pgindex.Open(ctx, "postgres://x@"+server.Addr().String()+"/x?sslmode=disable", pgindex.Options{})
		return err
	}
	err = answered(t.Context(), within, open)
	if !errors.Is(err, backup.ErrUnavailable) || !strings.Contains(err.Error(), "has not answered for 100ms") {
		t.Errorf("%v", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := answered(stopped, within, open); strings.Contains(err.Error(), "has not answered for") {
		t.Errorf("after an interrupt: %v", err)
	}
}

// A silentIndex does not answer.
type silentIndex struct{ index.Index }

func (silentIndex) Clock(ctx context.Context) (time.Time, error) {
	<-ctx.Done()
	return time.Time{}, ctx.Err()
}

// A server that hangs when the index is open keeps bctl status for a minute at most.
func TestStatusWithAServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &statusCommand{app: &app{cfg: &config.Config{Index: config.Index{URL: "postgres://db1/bctl"}}, term: &terminal{err: io.Discard}, log: slog.New(slog.DiscardHandler)}}
		began := time.Now()
		err := c.answer(t.Context(), silentIndex{})
		if took := time.Since(began); !errors.Is(err, backup.ErrUnavailable) || took != giveUpAfter {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
