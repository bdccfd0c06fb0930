// Package run ends processes: the first signal asks for a graceful stop, the
// second does not wait for it.
package run

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
)

// ErrInterrupted is the cause of the context that a signal has ended.
var ErrInterrupted = errors.New("interrupted")

// ExitInterrupted is the exit status of a process that a signal has ended.
const ExitInterrupted = 130

// Context returns a context that the first SIGINT or SIGTERM ends, with
// ErrInterrupted as its cause. first, which may be nil, is called then. The
// second signal ends the process at once. stop gives the signals back.
func Context(parent context.Context, first func()) (ctx context.Context, stop func()) {
	return notify(parent, first, func() { os.Exit(ExitInterrupted) })
}

func notify(parent context.Context, first, second func()) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for _, act := range []func(){func() {
			cancel(ErrInterrupted)
			if first != nil {
				first()
			}
		}, second} {
			select {
			case <-signals:
				act()
			case <-quit:
				return
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		<-ended
		cancel(nil)
	}
}

// gcPercent is how much garbage the collector lets come up before it runs, of
// what is live: most of that is buffers of packs and windows, which are made once,
// so that running it twice as often as by default costs little and saves a third of the memory.
const gcPercent = 50

// ballast counts as live, so that the collector does not run each time that a
// process with little to keep has made another megabyte of garbage. Nobody
// touches it: it takes addresses, not memory.
var ballast []byte

const ballastBytes = 32 << 20

// TuneMemory sets the garbage collector to what bctl's processes need, unless
// GOGC says otherwise.
func TuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		ballast = make([]byte, ballastBytes)
		runtime.KeepAlive(ballast) // a variable that nobody reads looks like a mistake
	}
}
