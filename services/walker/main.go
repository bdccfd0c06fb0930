// Command walker runs bctl's walker; "bctl walker" does the same.
package main

import (
	"os"

	"github.com/bctl/bctl/services/bctl/wire"
)

func main() { os.Exit(wire.Main("walker", wire.RunWalker)) }
