// Bctl backs up directory trees, lists backups, and restores them.
//
// To read the code, start at package flow (internal/flow/doc.go). It follows one file from the
// command line to the committed snapshot, and names the functions on the way.
package main

import (
	"os"

	"github.com/bctl/bctl/internal/process"
	"github.com/bctl/bctl/services/bctl/cli"
	"github.com/bctl/bctl/services/bctl/serve"
)

func main() {
	process.TuneMemory()
	os.Exit(cli.Main(cli.Services{Walker: serve.Walker, Reader: serve.Reader, Committer: serve.Committer, Pruner: serve.Pruner, Scrubber: serve.Scrubber, Restorer: serve.Restorer}))
}
