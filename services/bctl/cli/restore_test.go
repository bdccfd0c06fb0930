package cli

import (
	"strings"
	"syscall"
	"testing"

	"github.com/bctl/bctl/internal/restore"
)

// A disk that failed after the last write is named with what helps; another error stays as it is.
func TestAdviseSync(t *testing.T) {
	if err := adviseSync(&restore.SyncError{Err: syscall.EIO}); !strings.Contains(err.Error(), "--overwrite always") {
		t.Errorf("no advice: %v", err)
	}
	if err := adviseSync(syscall.EIO); err != error(syscall.EIO) {
		t.Errorf("another error became %v", err)
	}
}
