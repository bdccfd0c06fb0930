package debian

import (
	"path/filepath"
	"testing"

	"github.com/bctl/bctl/e2e/dockertest"
	"github.com/bctl/bctl/e2e/manual"
)

// blocks returns the shell commands of a page, in order. The kinds are nothing, "download", "lost",
// "on NAME", "shared" and the like.
func blocks(t *testing.T, page string) []manual.Block {
	t.Helper()
	all, err := manual.Blocks(filepath.Join(dockertest.Root(t), filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	return all
}
