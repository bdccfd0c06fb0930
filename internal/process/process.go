// Package process ends processes: the first signal requests a graceful stop, the second does not
// wait for it.
package process

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
)

// ErrInterrupted is the cause of a context that was ended by a signal.
var ErrInterrupted = errors.New("interrupted")

// ExitInterrupted is the exit status of a process that was ended by a signal.
const ExitInterrupted = 130

// Context returns a context that the first SIGINT or SIGTERM ends, with ErrInterrupted as its
// cause. first, which may be nil, is called then. The second signal ends the process at once. stop
// restores the default handling of signals.
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

// gcPercent is the amount of garbage, in percent of live memory, at which the collector runs. Most
// of the garbage is buffers of packs and windows, which are made once, so that running the
// collector twice as often as by default costs little and saves a third of the memory.
const gcPercent = 50

// ballast counts as live memory, so that the collector does not run after each megabyte of garbage
// in a process with little live memory. It is never touched: it takes addresses, not memory.
var ballast []byte

const ballastBytes = 32 << 20

// TuneMemory sets the garbage collector to the needs of bctl's processes, unless GOGC is set.
func TuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		ballast = make([]byte, ballastBytes)
		runtime.KeepAlive(ballast) // a variable that is never read looks like a mistake
	}
}
