package profile_test

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"testing"

	"github.com/bctl/bctl/e2e/bench/profile"
)

var kept [][]byte

func TestAllocations(t *testing.T) {
	if testing.Short() {
		t.Skip("runs go tool pprof")
	}
	// A profile is scaled by the rate as it is when the profile is written.
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	runtime.MemProfileRate = 1
	for range 1000 {
		kept = append(kept, make([]byte, 4096))
	}
	path := filepath.Join(t.TempDir(), "profile")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	if err := pprof.Lookup("allocs").WriteTo(f, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	objects, bytes, err := profile.Allocations(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if objects < 1000 || objects > 20_000 || bytes < 1000*4096 || bytes > 2000*4096 {
		t.Errorf("%d objects, %d bytes; want a little over 1000 and %d", objects, bytes, 1000*4096)
	}
}
