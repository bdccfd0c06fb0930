// Command reader runs bctl's reader; "bctl reader" does the same.
package main

import (
	"os"

	"github.com/bctl/bctl/services/bctl/wire"
)

func main() { os.Exit(wire.Main("reader", wire.RunReader)) }
