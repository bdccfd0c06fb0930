// Bctl backs file trees up, lists what was backed up, and restores it.
package main

import (
	"os"

	"github.com/bctl/bctl/services/bctl/cli"
)

func main() {
	os.Exit(cli.Main(cli.Services{}))
}
