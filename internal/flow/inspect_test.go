package flow

import (
	"slices"
	"strings"
	"testing"
)

func TestServerVersions(t *testing.T) {
	t.Parallel()
	for version, enough := range map[string]bool{
		"2.10.0": true, "2.15.2": true, "3.0.0-beta.1": true, "2.9.25": false, "2.10": false, "1.4.1": false, "": false, "nats": false,
	} {
		if f := (ServerFacts{Version: version}); f.Enough() != enough {
			t.Errorf("%q: %v", version, f.Enough())
		}
	}
}

func TestServersOfAList(t *testing.T) {
	t.Parallel()
	list := Servers("nats://u:secret@a:4222, nats://b ,")
	if len(list) != 2 || strings.Contains(list[0].Name, "secret") || list[0].address != "nats://u:secret@a:4222" || list[1].Name != "nats://b" {
		t.Errorf("%+v", list)
	}
}

// Others lists nothing that the client does itself, and nothing that only inspects.
func TestOthers(t *testing.T) {
	t.Parallel()
	for name, access := range map[string]Access{
		"walker": WalkerAccess("paris", "_INBOX"), "reader": ReaderAccess("paris", "_INBOX"), "committer": CommitterAccess("_INBOX"), "follower": FollowerAccess("_INBOX"),
	} {
		others := access.Others()
		has := func(what string) bool {
			return slices.ContainsFunc(others, func(r Right) bool { return r.What == what })
		}
		if !has("publish $JS.API.STREAM.DELETE.BCTL_COMMIT") || !has("publish $JS.API.CONSUMER.MSG.NEXT.BCTL_WALK.walkers-bctl-doctor") {
			t.Errorf("%s: %v", name, others)
		}
		if has("publish bctl.v1.drain.*") != (name != "follower") {
			t.Errorf("%s: who may drain is not looked at: %v", name, others)
		}
		for _, own := range access.Rights() {
			if has(own.What) {
				t.Errorf("%s: %s is its own", name, own.What)
			}
		}
		for _, r := range others {
			if !r.subscribe && r.data == nil || strings.ContainsAny(r.subject, "*") || strings.Contains(r.What, ".INFO.") {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
}
