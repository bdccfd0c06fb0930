package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A binary has the version that make build was called with, also if it is built outside of a clone.
func TestMakeSetsTheVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("links a binary: run without -short")
	}
	const root, version = "../..", "v1.2.3-test"
	output := func(name string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), name, args...)
		c.Dir = root
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%s %q: %v", name, args, err)
		}
		return string(out)
	}
	binary := filepath.Join(t.TempDir(), "bctl")
	build := output("make", "--no-print-directory", "--dry-run", "build", "VERSION="+version, "GOFLAGS=-buildvcs=false")
	if !strings.Contains(build, "-o bin/bctl ") {
		t.Fatalf("make runs %q", build)
	}
	output("sh", "-c", strings.Replace(build, "-o bin/bctl ", "-buildvcs=false -o '"+binary+"' ", 1))
	var got struct{ Version string }
	if err := json.Unmarshal([]byte(output(binary, "version", "--json")), &got); err != nil || got.Version != version {
		t.Errorf("%+v, %v", got, err)
	}
}
