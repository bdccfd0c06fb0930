package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/bctl/bctl/internal/testenv/testtarget"
)

// Previous returns the path of bctl as the release before this one had it: the commit that the file
// e2e/previous-release names. It skips the test where this clone does not have that commit.
func Previous(t testing.TB) string {
	t.Helper()
	testtarget.Need(t, testtarget.Upgrade)
	Binary(t) // and so skips where that does
	path, err := previous()
	var failed *exec.ExitError
	if errors.As(err, &failed) && failed.ExitCode() == commitMissing {
		t.Skipf("the release before this one cannot be built: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// commitMissing is the exit status of previous.sh where the clone does not have the commit.
const commitMissing = 3

var previous = sync.OnceValues(func() (string, error) {
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/bctl/bctl").Output()
	if err != nil {
		return "", err
	}
	build := exec.Command(filepath.Join(strings.TrimSpace(string(root)), "e2e", "previous.sh"))
	var stderr bytes.Buffer
	build.Stderr = &stderr
	path, err := build.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.TrimSpace(stderr.String()), err)
	}
	return strings.TrimSpace(string(path)), nil
})
