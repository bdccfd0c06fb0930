// Package profile counts the allocations in a Go profile.
package profile

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
)

// EveryAllocation is an environment variable with which a Go program records each allocation, and
// not only a sample. The program is slow then.
const EveryAllocation = "GODEBUG=memprofilerate=1"

// total is in the second line of what pprof prints:
//
//	Showing nodes accounting for 4021, 99.80% of 4029 total
var total = regexp.MustCompile(`of (\d+)(?:B)? total`)

// Allocations returns how many objects, and bytes, the profile in the file has.
func Allocations(ctx context.Context, file string) (objects, bytes int64, err error) {
	if objects, err = sum(ctx, file, "alloc_objects"); err != nil {
		return 0, 0, err
	}
	bytes, err = sum(ctx, file, "alloc_space")
	return objects, bytes, err
}

func sum(ctx context.Context, file, of string) (int64, error) {
	// Without a unit, bytes are rounded to megabytes.
	out, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-sample_index="+of, "-unit=B", "-top", "-nodecount=1", file).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("go tool pprof: %w: %s", err, out)
	}
	found := total.FindSubmatch(out)
	if found == nil {
		return 0, fmt.Errorf("go tool pprof printed no total: %s", out)
	}
	return strconv.ParseInt(string(found[1]), 10, 64)
}
