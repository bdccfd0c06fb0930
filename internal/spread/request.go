package spread

import (
	"encoding/json"
	"fmt"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
	"github.com/bctl/bctl/internal/restore"
)

// A Request is what all restorers of a restore are told.
type Request struct {
	Path             []byte // within the shard; a directory
	Pages            backup.PageSet
	Compare          backup.Compare
	Overwrite        restore.Overwrite
	TargetAttributes bool
	NoSync           bool
	Verify           bool
}

// Encode returns the form that the index stores.
func (r Request) Encode() ([]byte, error) { return json.Marshal(r) }

// DecodeRequest decodes and checks a stored Request. Errors wrap backup.ErrCorrupt.
func DecodeRequest(data []byte) (r Request, err error) {
	if len(data) > index.MaxRestoreRequestBytes {
		return r, fmt.Errorf("request of %d bytes: %w", len(data), backup.ErrCorrupt)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("request of a restore: %w: %w", err, backup.ErrCorrupt)
	}
	if err := backup.CheckPath(string(r.Path)); err != nil {
		return r, fmt.Errorf("request of a restore: %w: %w", err, backup.ErrCorrupt)
	}
	// A later attempt would keep half of a file that another overwrite keeps.
	if r.Overwrite != restore.IfChanged && r.Overwrite != restore.Always {
		return r, fmt.Errorf("request of a restore: overwrite %q: %w", r.Overwrite, backup.ErrCorrupt)
	}
	return r, nil
}

// Options returns the options of the restore, without Part.
func (r *Request) Options(of *index.Restore) restore.Options {
	return restore.Options{
		Snapshot: of.Snapshot, Path: string(r.Path), Target: of.Target, Pages: r.Pages, Compare: r.Compare,
		Overwrite: r.Overwrite, TargetAttributes: r.TargetAttributes, NoSync: r.NoSync, Verify: r.Verify,
	}
}

// maxProblems bounds the problems that a task reports. Further ones are counted.
const maxProblems = 2000

// maxProblemBytes bounds the texts of these problems.
const maxProblemBytes = 1 << 20

// A Result is the result of a task.
type Result struct {
	Summary  restore.Summary
	Problems []Problem
	Begun    Begun // of the task that begins the restore
}

// A Problem is a backup.Problem whose path may have any bytes.
type Problem struct {
	Path    []byte
	Op, Err string
}

// Begun is what the target was before the restore.
type Begun struct {
	Inode uint64
	Mode  uint32
	Mtime backup.Time
}

// Add adds a problem, if there is room. The summary counts all.
func (r *Result) Add(p backup.Problem, bytes *int) {
	if *bytes += len(p.Path)*4/3 + len(p.Op) + len(p.Err); len(r.Problems) < maxProblems && *bytes < maxProblemBytes {
		r.Problems = append(r.Problems, Problem{[]byte(p.Path), p.Op, p.Err})
	}
}

// Encode returns the form that the index stores.
func (r *Result) Encode() ([]byte, error) { return json.Marshal(r) }

// DecodeResult decodes a stored Result. Errors wrap backup.ErrCorrupt.
func DecodeResult(data []byte) (r Result, err error) {
	if len(data) > index.MaxRestoreBlobBytes {
		return r, fmt.Errorf("result of %d bytes: %w", len(data), backup.ErrCorrupt)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("result of a restore task: %w: %w", err, backup.ErrCorrupt)
	}
	return r, nil
}
