// Package golden reads the frozen files of released formats.
package golden

import (
	"os"
	"path/filepath"
	"testing"
)

// Dir is the directory of the golden files of version 1 of a format, in the package of a test.
const Dir = "testdata/v1"

// Read returns a golden file of Dir.
func Read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(Dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
