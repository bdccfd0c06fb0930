package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/browse"
)

// InstantName is the name of the directory in the target that package instant works in. An
// interrupted run leaves it there, with everything that users have written.
const InstantName = ".bctl-instant"

var errUnfinished = errors.New("an unfinished bctl restore --instant, with what users have changed, is here; nothing in it was deleted")

// An UnfinishedError reports that the target has what an interrupted run of package instant has
// left. A restore beside it would look complete without the users' changes, and Delete would delete
// them.
type UnfinishedError struct{ Target string }

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("target %s has an unfinished bctl restore --instant, with what users have changed, in %s", e.Target, InstantName)
}

// checkUnfinished returns an UnfinishedError, unless the directory of that name comes from the
// snapshot: package instant does not restore such a snapshot.
func (r *restorer) checkUnfinished(ctx context.Context) error {
	info, err := os.Lstat(filepath.Join(r.o.Target, InstantName))
	if err != nil || !info.IsDir() || r.o.Part != nil {
		return nil //nolint:nilerr // opening the target reports what is wrong with it
	}
	_, err = browse.Lookup(ctx, r.cat, r.o.Snapshot, backup.Join(r.o.Path, InstantName))
	if err == nil {
		return nil
	}
	if !errors.Is(err, backup.ErrNotFound) {
		return err
	}
	return &UnfinishedError{r.o.Target}
}
