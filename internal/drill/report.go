package drill

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/seal"
)

const (
	reportVersion = 1
	// maxFailures is the maximum number of failures that a report names.
	maxFailures = 100
	// signedPrefix begins the name for which a report is signed. No object in the store has it.
	signedPrefix = "drills/"
)

// A Report is what a drill has found. The names of its JSON are fixed (docs/formats/drill.md).
type Report struct {
	Version    int    `json:"version"`
	ID         string `json:"id"`
	Repository string `json:"repository"`
	Filer      string `json:"filer"`
	Shard      string `json:"shard"`
	ShardKey   string `json:"shard_key"`
	Snapshot   string `json:"snapshot"`
	Number     int64  `json:"number"` // of the snapshot
	// SnapshotStarted is when the snapshot was begun, and Started when the drill was.
	SnapshotStarted time.Time `json:"snapshot_started"`
	Started         time.Time `json:"started"`
	Seconds         float64   `json:"seconds"` // of the whole drill
	By              string    `json:"by"`      // user@host
	// Seed, MaxFiles and MaxBytes repeat the choice.
	Seed     uint64 `json:"seed"`
	MaxFiles int    `json:"max_files"`
	MaxBytes int64  `json:"max_bytes"`

	Passed    bool `json:"passed"`
	Sample    Part `json:"sample"`
	Directory Part `json:"directory"`
	// TooLarge counts files that exceed MaxBytes, or the rest of it: no drill with it restores
	// them.
	TooLarge int64 `json:"too_large"`
	// Flawed counts entries that were flawed when the snapshot was taken.
	Flawed int64 `json:"flawed"`
	// NotCarried counts, by attribute, values that the target cannot have.
	NotCarried map[string]int64 `json:"not_carried,omitempty"`
	Source     *Source          `json:"source,omitempty"` // nil: not compared
	Failures   int64            `json:"failures"`
	Failed     []Failure        `json:"failed,omitempty"` // the first of them
}

// A Part is what one restore has restored.
type Part struct {
	Path    string  `json:"path,omitempty"`     // of the directory
	Raw     string  `json:"path_b64,omitempty"` // if the path is not UTF-8
	Chosen  bool    `json:"chosen"`             // false: there was nothing to choose
	Entries int64   `json:"entries"`            // compared
	Files   int64   `json:"files"`              // of these: files, whose content was compared
	Bytes   int64   `json:"bytes"`              // restored, without holes
	Seconds float64 `json:"seconds"`            // of the restore, until its data was on the disk
}

// A Source is what the comparison with the file server has found.
type Source struct {
	Files   int64 `json:"files"`   // that were compared, and are equal
	Changed int64 `json:"changed"` // since the snapshot, or gone
}

// A Failure is one thing that was not restored as it is in the snapshot.
type Failure struct {
	Path  string `json:"path"` // within the shard
	Raw   string `json:"path_b64,omitempty"`
	What  string `json:"what"` // content, mode, owner, mtime, xattr …
	Error string `json:"error"`
}

// fail records a failure. The two restores of a drill may find the same one.
func (r *Report) fail(path, what, reason string) {
	f := Failure{path, backup.RawBase64(path), what, reason}
	if slices.Contains(r.Failed, f) {
		return
	}
	if r.Failures++; len(r.Failed) < maxFailures {
		r.Failed = append(r.Failed, f)
	}
}

// Sign returns the row of the index for a report of a shard.
func Sign(r *Report, shard backup.ShardID, key seal.CommitterKey) (d index.Drill, err error) {
	if d, err = r.row(shard); err != nil {
		return d, err
	}
	for {
		if d.Report, err = json.Marshal(r); err != nil {
			return d, err
		}
		if len(d.Report) <= index.MaxDrillReportBytes || len(r.Failed) == 0 {
			break
		}
		r.Failed = r.Failed[:len(r.Failed)/2] // long paths
	}
	d.Signature = key.Signing.Sign(key.Repository, signedPrefix+r.ID, d.Report)
	return d, nil
}

// row returns what a row has of a report, except its bytes.
func (r *Report) row(shard backup.ShardID) (d index.Drill, err error) {
	d = index.Drill{Shard: shard, Started: r.Started.UTC(), Passed: r.Passed}
	if d.ID, err = backup.ParseDrillID(r.ID); err != nil {
		return d, err
	}
	d.Snapshot, err = backup.ParseSnapshotID(r.Snapshot)
	return d, err
}

// Open returns the report in a row of the index. Its error wraps backup.ErrCorrupt unless the
// report is signed by the repository's signer, describes the shard with the given key, and agrees
// with the other columns of the row.
func Open(d *index.Drill, repository backup.RepositoryID, signer seal.Signer, shard backup.ShardKey) (*Report, error) {
	if len(d.Report) > index.MaxDrillReportBytes {
		return nil, fmt.Errorf("drill %s: its report has %d bytes: %w", d.ID, len(d.Report), backup.ErrCorrupt)
	}
	if err := signer.Verify(repository, signedPrefix+d.ID.String(), d.Report, d.Signature); err != nil {
		return nil, err
	}
	r, err := decode(d.Report)
	if err != nil {
		return nil, fmt.Errorf("drill %s: %w", d.ID, err)
	}
	want, err := r.row(d.Shard)
	if err != nil || want.ID != d.ID || want.Snapshot != d.Snapshot || !want.Started.Equal(d.Started) || want.Passed != d.Passed ||
		r.Repository != repository.String() || r.ShardKey != shard.String() {
		return nil, fmt.Errorf("drill %s: its row in the index differs from its signed report: %w", d.ID, backup.ErrCorrupt)
	}
	return r, nil
}

// decode reads a report. A later version may have further fields.
func decode(data []byte) (*Report, error) {
	var r Report
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&r); err != nil {
		return nil, fmt.Errorf("its report: %w: %w", err, backup.ErrCorrupt)
	}
	if r.Version != reportVersion {
		return nil, fmt.Errorf("its report has version %d, and this bctl reads version %d: %w", r.Version, reportVersion, backup.ErrCorrupt)
	}
	return &r, nil
}
