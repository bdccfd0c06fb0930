package serve

import (
	"fmt"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/config"
	"github.com/bctl/bctl/internal/source/posix"
	"github.com/bctl/bctl/services/committer/commit"
	"github.com/bctl/bctl/services/committer/schedule"
	"github.com/bctl/bctl/services/pruner/sweep"
	"github.com/bctl/bctl/services/reader/read"
	"github.com/bctl/bctl/services/restorer/write"
	"github.com/bctl/bctl/services/walker/walk"
)

// The documented value of each setting whose default is 0 is the one that the services use.
func TestDocumentedDefaultsAreUsed(t *testing.T) {
	defaults := map[string][]any{
		"worker.stall_after": {walk.DefaultStallAfter, read.DefaultStallAfter}, "worker.stop_timeout": {walk.DefaultStopTimeout, read.DefaultStopTimeout, commit.DefaultStopTimeout},
		"worker.tasks": {walk.DefaultTasks}, "worker.directories": {walk.DefaultDirectories}, "worker.grain": {posix.DefaultGrain}, "worker.skew": {posix.DefaultSkew},
		"worker.batches": {read.DefaultBatches}, "worker.in_hand": {read.DefaultInHand}, "worker.linger": {read.DefaultLinger},
		"worker.lease": {commit.DefaultLease}, "worker.queue_lease": {commit.DefaultQueueLease}, "worker.poll": {commit.DefaultPoll}, "worker.queued": {commit.DefaultQueued},
		"worker.max_running": {schedule.DefaultRunning}, "worker.max_running_per_filer": {schedule.DefaultRunningPerFiler},
		"pruner.interval": {sweep.DefaultInterval}, "pruner.max_memory": {sweep.DefaultMaxMemory}, "pruner.max_unused": {sweep.DefaultMaxUnused}, "pruner.bytes_per_second": {"no limit"},
		"scrubber.bytes_per_second": {"no limit"}, "restorer.tasks": {write.DefaultTasks}, "mirror.bytes_per_second": {"no limit"}, "mirror.requests_per_second": {"no limit"},
		"worker.workers": {"one per CPU"}, "index.max_connections": {8},
	}
	for _, s := range config.Settings() {
		if s.Default != "0" && s.Default != "0s" {
			continue
		}
		if len(defaults[s.Key]) == 0 {
			t.Errorf("%s has the default 0, and the documentation does not state what that stands for", s.Key)
		}
		for _, value := range defaults[s.Key] {
			means := any(s.Means)
			if _, ok := value.(time.Duration); ok {
				var err error
				if means, err = time.ParseDuration(s.Means); err != nil {
					t.Errorf("%s: %v", s.Key, err)
				}
			} else {
				value = fmt.Sprint(value)
			}
			if means != value {
				t.Errorf("%s is documented as %v, and is %v", s.Key, means, value)
			}
		}
	}
}
