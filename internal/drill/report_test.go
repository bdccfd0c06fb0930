package drill

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/seal"
)

func exampleReport(repository backup.RepositoryID, shard backup.ShardKey) *Report {
	return &Report{
		Version: reportVersion, ID: backup.NewDrillID().String(), Repository: repository.String(), Filer: "nas1", Shard: "home", ShardKey: shard.String(),
		Snapshot: backup.NewSnapshotID().String(), Number: 7, SnapshotStarted: time.Date(2026, 11, 1, 2, 3, 4, 0, time.UTC),
		Started: time.Date(2026, 11, 2, 3, 4, 5, 6000, time.UTC), Seconds: 1.5, By: "root@drill", Seed: 42, MaxFiles: 100, MaxBytes: 1 << 30, Passed: true,
		Sample: Part{Chosen: true, Entries: 100, Files: 90, Bytes: 1 << 20, Seconds: 1}, Directory: Part{Path: "\xff", Raw: "/w==", Chosen: true},
		NotCarried: map[string]int64{"owner": 3}, Source: &Source{Files: 1, Changed: 2},
	}
}

// A report is believed only with its signature, of its repository and shard, and with the columns
// that it has.
func TestForgedReports(t *testing.T) {
	key := seal.CommitterKey{Repository: backup.NewRepositoryID(), Signing: seal.NewSigningKey()}
	shard := backup.NewShardKey()
	want := exampleReport(key.Repository, shard)
	row, err := Sign(want, 5, key)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Open(&row, key.Repository, key.Signing.Signer(), shard)
	if err != nil {
		t.Fatal(err)
	}
	want.Directory.Path = "\uFFFD" // the path is in path_b64
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	other := *want
	other.ID = backup.NewDrillID().String()
	otherRow, err := Sign(&other, 5, key)
	if err != nil {
		t.Fatal(err)
	}
	for name, forge := range map[string]func(d *index.Drill){
		"result":    func(d *index.Drill) { d.Passed = false },
		"time":      func(d *index.Drill) { d.Started = d.Started.Add(time.Hour) },
		"snapshot":  func(d *index.Drill) { d.Snapshot = backup.NewSnapshotID() },
		"id":        func(d *index.Drill) { d.ID = backup.NewDrillID() },
		"report":    func(d *index.Drill) { d.Report = []byte(strings.Replace(string(d.Report), "nas1", "nas2", 1)) },
		"other":     func(d *index.Drill) { d.Report = otherRow.Report },
		"signature": func(d *index.Drill) { d.Signature = otherRow.Signature },
		"none":      func(d *index.Drill) { d.Signature = nil },
		"length":    func(d *index.Drill) { d.Report = make([]byte, index.MaxDrillReportBytes+1) },
		"no key": func(d *index.Drill) {
			d.Signature = seal.NewSigningKey().Sign(key.Repository, signedPrefix+d.ID.String(), d.Report)
		},
		"version": func(d *index.Drill) {
			d.Report = []byte(strings.Replace(string(d.Report), `"version":1`, `"version":2`, 1))
			d.Signature = key.Signing.Sign(key.Repository, signedPrefix+d.ID.String(), d.Report)
		},
	} {
		forged := row
		forge(&forged)
		if _, err := Open(&forged, key.Repository, key.Signing.Signer(), shard); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(&row, key.Repository, key.Signing.Signer(), backup.NewShardKey()); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("of another shard: %v", err)
	}
	if _, err := Open(&row, backup.NewRepositoryID(), key.Signing.Signer(), shard); !errors.Is(err, backup.ErrCorrupt) {
		t.Errorf("of another repository: %v", err)
	}
}

// A report of many failures with long paths fits into the index, and has their number.
func TestReportsAreBounded(t *testing.T) {
	key := seal.CommitterKey{Repository: backup.NewRepositoryID(), Signing: seal.NewSigningKey()}
	shard := backup.NewShardKey()
	r := exampleReport(key.Repository, shard)
	for n := range 1000 {
		r.fail(strings.Repeat("\x01", 4000)+string(rune('a'+n%26))+string(rune('a'+n/26)), "content", "it differs")
	}
	r.Passed = false
	row, err := Sign(r, 5, key)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Open(&row, key.Repository, key.Signing.Signer(), shard)
	if err != nil {
		t.Fatal(err)
	}
	if len(row.Report) > index.MaxDrillReportBytes || got.Failures != 1000 || len(got.Failed) == 0 {
		t.Errorf("%d bytes, %d failures, %d named", len(row.Report), got.Failures, len(got.Failed))
	}
}

// No bytes make the decoder panic, and a report that it reads can be signed.
func FuzzReport(f *testing.F) {
	f.Add([]byte(`{"version":1,"id":"00"}`))
	f.Add([]byte(`{"version":1,"not_carried":{"x":1},"failed":[{}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			if !errors.Is(err, backup.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		_, _ = Sign(r, 1, seal.CommitterKey{Signing: seal.NewSigningKey()})
	})
}
