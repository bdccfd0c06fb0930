// Package e2e_test proves what bctl promises as a whole, with real processes
// and real servers: everything here goes through the command line.
package e2e_test

import (
	"os"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
)

func TestMain(m *testing.M) {
	status := m.Run()
	fleet.Cleanup()
	os.Exit(status)
}
