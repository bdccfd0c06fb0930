// Bctl backs up directory trees, lists backups, and restores them.
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
