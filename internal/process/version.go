package process

import "runtime/debug"

// linked is the version that make build gives to the linker.
var linked string

// Version returns the version of this binary: the one that it was built with, or else the one that
// the Go command recorded.
func Version() string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
