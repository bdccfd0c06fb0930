package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/source/posix"
)

func TestMountOptions(t *testing.T) {
	t.Parallel()
	for options, want := range map[string]string{
		"ro,noatime,vers=3,rsize=1048576,hard": "",
		"rw,vers=4.2,soft":                     "soft",
		"rw,noac":                              "without noac",
		"rw,nordirplus":                        "without nordirplus",
		"rw,rsize=32768":                       "rsize=1048576",
		"rw,vers=2":                            "vers=3 or later",
	} {
		d := sourceDoctor{mount: posix.Mount{FileSystem: "nfs4", Options: strings.Split(options, ",")}}
		r := d.options(t.Context())
		if (r.Status == OK) != (want == "") || !strings.Contains(r.Seen+r.Advice, want) {
			t.Errorf("%s: %+v", options, r)
		}
	}
}

// The results of a survey, and the report on it.
func TestSurvey(t *testing.T) {
	t.Parallel()
	now := time.Now()
	nfs3 := posix.Mount{FileSystem: "nfs", Options: []string{"rw"}}
	for _, c := range []struct {
		name   string
		mount  posix.Mount
		survey posix.Survey
		check  func(*sourceDoctor) Finding
		status Status
		text   string
	}{
		{"slow", nfs3, posix.Survey{Entries: 9, Median: 30 * time.Millisecond}, func(d *sourceDoctor) Finding { return d.latency(t.Context()) }, Warning, "30 ms (median)"},
		{"cached", nfs3, posix.Survey{File: "f", Cachestat: true}, func(d *sourceDoctor) Finding { return d.pageCache(t.Context()) }, OK, "cachestat"},
		{"stays", nfs3, posix.Survey{File: "f"}, func(d *sourceDoctor) Finding { return d.pageCache(t.Context()) }, Warning, "neither"},
		{"no file", nfs3, posix.Survey{}, func(d *sourceDoctor) Finding { return d.pageCache(t.Context()) }, NotTested, "no file"},
		{"traces", nfs3, posix.Survey{NoAtimeDenied: true}, func(d *sourceDoctor) Finding { return d.traces(t.Context()) }, Warning, "noatime"},
		{"none written", posix.Mount{Options: []string{"ro"}}, posix.Survey{NoAtimeDenied: true}, func(d *sourceDoctor) Finding { return d.traces(t.Context()) }, OK, "not needed"},
		{"NFS 3", nfs3, posix.Survey{File: "f"}, func(d *sourceDoctor) Finding { return d.attributes(t.Context()) }, Warning, "no extended attributes"},
		{"coarse", nfs3, posix.Survey{Entries: 9, Grain: time.Second}, func(d *sourceDoctor) Finding { return d.changeTimes(t.Context()) }, Warning, "worker.grain"},
		{"ahead", nfs3, posix.Survey{Newest: now.Add(time.Minute)}, func(d *sourceDoctor) Finding { return d.clock(t.Context()) }, Warning, "ahead of ours by 60 s"},
		{"long ago", nfs3, posix.Survey{Newest: now.Add(-time.Hour)}, func(d *sourceDoctor) Finding { return d.clock(t.Context()) }, NotTested, "60 min old"},
		{"denied", nfs3, posix.Survey{Denied: 3, DeniedPath: "x"}, func(d *sourceDoctor) Finding { return d.access(t.Context()) }, Warning, `3 of the examined entries, such as "x"`},
		{"no openat2", nfs3, posix.Survey{Entries: 9, Directories: 1}, func(d *sourceDoctor) Finding { return d.walked() }, Warning, "openat2"},
	} {
		d := &sourceDoctor{mount: c.mount, survey: c.survey, asked: now}
		if r := c.check(d); r.Status != c.status || !strings.Contains(r.Seen+r.Advice, c.text) {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
}
