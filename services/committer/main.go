// Command committer runs bctl's committer; "bctl committer" does the same.
package main

import (
	"os"

	"github.com/bctl/bctl/services/bctl/wire"
)

func main() { os.Exit(wire.Main("committer", wire.RunCommitter)) }
