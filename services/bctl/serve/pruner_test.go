package serve

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/bctl/bctl/internal/flow"
	"github.com/bctl/bctl/internal/store"
	"github.com/bctl/bctl/services/bctl/open"
)

// A pruner is listed among the services, with why it is not ready. It works without NATS.
func TestPrunerAnnouncesItself(t *testing.T) {
	f := newFleet(t)
	f.start("pruner", Pruner, nil)
	repository := value(f.idx.Repository(t.Context()))(f)
	conn := value(open.NATS(f.config(nil), "operator", repository.ID, slog.New(slog.DiscardHandler)))(f)
	defer conn.Close()
	pruner := func(is func(*flow.Instance) bool) func() bool {
		return func() bool {
			all, err := conn.Instances(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(all, func(i flow.Instance) bool { return i.Role == flow.RolePruner && i.Site == "" && is(&i) })
		}
	}
	f.until("the pruner is listed, and ready", pruner(func(i *flow.Instance) bool { return i.Ready && !i.Worker() }))
	object := filepath.Join(f.settings["BCTL_REPO"], "store", store.ConfigName)
	if err := os.Rename(object, object+".away"); err != nil {
		t.Fatal(err)
	}
	f.until("it is listed with why it is not ready", pruner(func(i *flow.Instance) bool { return !i.Ready && i.Reason != "" }))
	if err := os.Rename(object+".away", object); err != nil {
		t.Fatal(err)
	}
	f.until("it is ready again", pruner(func(i *flow.Instance) bool { return i.Ready }))
}
