package indextest

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// The log has each change to the settings of a policy that decide what is kept, with the settings
// before and after. It has no other changes of policies.
func testPoliciesAreLogged(t *testing.T, fresh func(testing.TB) Database) {
	f := newFixture(t, fresh)
	p := backup.Policy{Name: "it's nightly", Schedule: "0 3 * * *", Retention: backup.Retention{Daily: 30, Tags: [][]string{{"legal", `a"b`}}}}
	set := func(change func(*backup.Policy)) {
		t.Helper()
		change(&p)
		_, err := f.x.SetPolicy(f.ctx, p, "alice")
		f.must(err)
	}
	set(func(*backup.Policy) {})
	set(func(p *backup.Policy) { p.Jitter = time.Minute })
	set(func(p *backup.Policy) { p.Retention = backup.Retention{Daily: 1} })
	set(func(p *backup.Policy) { p.Labels = map[string]string{"env": "prod"} })
	set(func(p *backup.Policy) { p.Paused, p.TimeZone, p.Schedule = true, "Europe/Vienna", "@daily" })
	f.must(f.x.RemovePolicy(f.ctx, p.Name, "bob"))

	was := index.LoggedPolicy{Retention: backup.Retention{Daily: 30, Tags: [][]string{{"legal", `a"b`}}}, Labels: map[string]string{}, Schedule: "0 3 * * *"}
	shorter := was
	shorter.Retention = backup.Retention{Daily: 1}
	bound := shorter
	bound.Labels = map[string]string{"env": "prod"}
	paused := bound
	paused.Schedule, paused.TimeZone, paused.Paused = "@daily", "Europe/Vienna", true
	states := []*index.LoggedPolicy{nil, &was, &shorter, &bound, &paused, nil}
	n := 0
	for e, err := range f.x.Log(f.ctx, time.Time{}) {
		f.must(err)
		var got index.PolicyChange
		f.must(json.Unmarshal([]byte(e.Reason), &got))
		if n+1 == len(states) {
			t.Fatalf("one more entry: %+v", e)
		}
		by := "alice"
		if states[n+1] == nil {
			by = "bob"
		}
		if e.Action != "policy" || e.Subject != "policy it's nightly" || e.By != by {
			t.Errorf("entry %+v", e)
		}
		f.wantJSON(fmt.Sprintf("entry %d", n), got, index.PolicyChange{Was: states[n], Is: states[n+1]})
		n++
	}
	if n+1 != len(states) {
		t.Errorf("%d entries, want %d", n, len(states)-1)
	}
	for _, by := range []string{"", "a\x00"} {
		_, err := f.x.SetPolicy(f.ctx, p, by)
		f.wants(err, backup.ErrInvalid)
		f.wants(f.x.RemovePolicy(f.ctx, p.Name, by), backup.ErrInvalid)
	}
	f.wants(f.x.RemovePolicy(f.ctx, p.Name, "bob"), backup.ErrNotFound)
}

// wantJSON compares two values by their JSON.
func (f *fixture) wantJSON(what string, got, want any) {
	f.Helper()
	var text [2]string
	for i, v := range []any{got, want} {
		data, err := json.Marshal(v)
		f.must(err)
		text[i] = string(data)
	}
	if text[0] != text[1] {
		f.Errorf("%s: %s, want %s", what, text[0], text[1])
	}
}
