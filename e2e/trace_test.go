package e2e_test

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// spans receives spans, as an OpenTelemetry collector does.
type spans struct {
	mu   sync.Mutex
	list []span
}

type span struct {
	service, name, trace, id, parent string
	attributes                       map[string]string
	start, end                       uint64
}

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var m collector.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &m) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range m.GetResourceSpans() {
		service := attributes(resource.GetResource().GetAttributes())["service.name"]
		for _, scope := range resource.GetScopeSpans() {
			for _, sp := range scope.GetSpans() {
				s.list = append(s.list, span{
					service: service, name: sp.GetName(), trace: hex.EncodeToString(sp.GetTraceId()),
					id: hex.EncodeToString(sp.GetSpanId()), parent: hex.EncodeToString(sp.GetParentSpanId()),
					attributes: attributes(sp.GetAttributes()), start: sp.GetStartTimeUnixNano(), end: sp.GetEndTimeUnixNano(),
				})
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func attributes(list []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range list {
		value := a.GetValue()
		var texts []string
		for _, v := range value.GetArrayValue().GetValues() {
			texts = append(texts, v.GetStringValue())
		}
		m[a.GetKey()] = value.GetStringValue() + strings.Join(texts, " ")
	}
	return m
}

// tracedBackup backs a directory tree up with a fleet that sends its traces here, and returns the
// snapshot's id and the spans.
func tracedBackup(t *testing.T, env ...string) (snapshot string, received *spans) {
	t.Helper()
	received = &spans{}
	server := httptest.NewServer(received)
	t.Cleanup(server.Close)
	f := fleet.New(t, fleet.Options{Walkers: -1, Readers: -1, Committers: -1})
	var services []*fleet.Service
	for _, kind := range []string{"committer", "walker", "reader"} {
		services = append(services, f.Service(kind, append(env, "BCTL_TRACE_URL="+server.URL)...))
	}
	tree := t.TempDir()
	treetest.Make(t, tree, treetest.Tree{"a": treetest.File("1"), "b": treetest.Dir(), "b/c": treetest.Dir(), "b/c/d": treetest.File("2")})
	settle(t)
	f.Register(tree)
	snapshot = f.Backup(fleet.BackupArgs(tree)...).Snapshot
	for _, s := range services {
		s.Retire() // and the remaining spans are sent
	}
	server.Close()
	return snapshot, received
}

// A trace connects the snapshot, the tasks and batches that committers assign, the work of workers
// on them, and the transactions that apply the results, across all three services.
func TestTraceFollowsADirectoryFromTaskToCommit(t *testing.T) {
	t.Parallel()
	snapshot, received := tracedBackup(t)
	byID := map[string]span{}
	for _, s := range received.list {
		if s.trace != strings.ReplaceAll(snapshot, "-", "") {
			t.Errorf("%s of %s is in trace %s, not in the snapshot's", s.name, s.service, s.trace)
		}
		if s.end < s.start {
			t.Errorf("%s ends before it begins", s.name)
		}
		byID[s.id] = s
	}
	for _, want := range [][]string{
		{"apply slice bctl-committer", "walk slice bctl-walker", "hand out task bctl-committer", "snapshot bctl-committer"},
		{"apply batch bctl-committer", "read batch bctl-reader", "hand out batch bctl-committer", "snapshot bctl-committer"},
		{"apply pack bctl-committer", "put pack bctl-reader", "read batch bctl-reader", "hand out batch bctl-committer", "snapshot bctl-committer"},
		{"commit bctl-committer", "snapshot bctl-committer"},
	} {
		if !slices.ContainsFunc(received.list, func(s span) bool { return slices.Equal(ancestry(byID, s), want) }) {
			t.Errorf("no span leads back as %v", want)
		}
	}
	found := false
	for _, s := range received.list {
		found = found || s.name == "hand out batch" && slices.Contains(strings.Fields(s.attributes["paths"]), "/b/c")
	}
	if !found {
		t.Error("directory b/c is in no batch's paths")
	}
	if t.Failed() {
		for _, s := range received.list {
			t.Logf("%v %v", ancestry(byID, s), s.attributes)
		}
	}
}

// ancestry returns the names of a span and its ancestors.
func ancestry(byID map[string]span, s span) (names []string) {
	for ok := true; ok; s, ok = byID[s.parent] {
		names = append(names, s.name+" "+s.service)
	}
	return names
}

func TestFewerSnapshotsAreTraced(t *testing.T) {
	t.Parallel()
	if _, received := tracedBackup(t, "BCTL_TRACE_PERCENT=0"); len(received.list) > 0 {
		t.Errorf("%d spans of a snapshot that is not traced", len(received.list))
	}
}
