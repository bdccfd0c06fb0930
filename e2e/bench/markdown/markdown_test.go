//go:build linux

package markdown_test

import (
	"testing"

	"github.com/bctl/bctl/e2e/bench/markdown"
)

func TestReplaceSection(t *testing.T) {
	once := markdown.Replace("# Benchmarks\n", "a", "first\n")
	both := markdown.Replace(once, "b", "other\n")
	again := markdown.Replace(both, "a", "second\n")
	if again != markdown.Replace(markdown.Replace("# Benchmarks\n", "a", "second\n"), "b", "other\n") {
		t.Errorf("%s", again)
	}
}
