package process

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
)

func TestFirstSignalStopsSecondKills(t *testing.T) {
	told, killed := make(chan struct{}), make(chan struct{})
	ctx, stop := notify(context.Background(), func() { close(told) }, func() { close(killed) })
	defer stop()

	interrupt(t)
	<-told
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, ErrInterrupted) {
		t.Errorf("cause is %v", err)
	}
	select {
	case <-killed:
		t.Fatal("killed by the first signal")
	default:
	}
	interrupt(t)
	<-killed
}

func TestStopWithoutSignal(t *testing.T) {
	ctx, stop := notify(context.Background(), nil, func() { t.Error("killed") })
	stop()
	if err := context.Cause(ctx); errors.Is(err, ErrInterrupted) {
		t.Errorf("cause is %v", err)
	}
}

func interrupt(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}
