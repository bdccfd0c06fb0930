package cli

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"

	"github.com/spf13/pflag"
)

// A profiler profiles this process, for developers of bctl. Its flags are hidden. `go tool pprof`
// and `go tool trace` read the files.
type profiler struct {
	cpuFile, memFile, traceFile string

	cpu, trace *os.File
}

func (p *profiler) flags(flags *pflag.FlagSet) {
	for name, to := range map[string]*string{"cpuprofile": &p.cpuFile, "memprofile": &p.memFile, "trace": &p.traceFile} {
		flags.StringVar(to, name, "", "write a profile to `FILE`")
		_ = flags.MarkHidden(name) // fails only if the flag does not exist
	}
}

// start starts the profiles that the flags request.
func (p *profiler) start() (err error) {
	if p.cpuFile != "" {
		if p.cpu, err = os.Create(p.cpuFile); err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(p.cpu); err != nil {
			return err
		}
	}
	if p.traceFile != "" {
		if p.trace, err = os.Create(p.traceFile); err != nil {
			return err
		}
		return trace.Start(p.trace)
	}
	return nil
}

// stop ends the profiles, and writes the profile of allocations: all of them, and those still in
// use.
func (p *profiler) stop() error {
	var failed error
	if p.cpu != nil {
		pprof.StopCPUProfile()
		failed = errors.Join(failed, p.cpu.Close())
	}
	if p.trace != nil {
		trace.Stop()
		failed = errors.Join(failed, p.trace.Close())
	}
	if p.memFile != "" {
		failed = errors.Join(failed, writeAllocations(p.memFile))
	}
	if failed != nil {
		return fmt.Errorf("write profile: %w", failed)
	}
	return nil
}

func writeAllocations(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	runtime.GC() // the profile shows what is in use as of the last collection
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}
