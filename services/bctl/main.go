// Bctl backs file trees up, lists what was backed up, and restores it.
package main

import (
	"os"

	"github.com/bctl/bctl/internal/run"
	"github.com/bctl/bctl/services/bctl/cli"
	"github.com/bctl/bctl/services/bctl/wire"
)

func main() {
	run.TuneMemory()
	os.Exit(cli.Main(cli.Services{Walker: wire.RunWalker, Reader: wire.RunReader, Committer: wire.RunCommitter}))
}
