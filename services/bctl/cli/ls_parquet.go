package cli

import (
	"math"

	"github.com/bctl/bctl/internal/backup"
)

// entryRow is one entry of ls --parquet. The columns have the names of entryJSON.
type entryRow struct {
	Path      string   `parquet:"path"`
	Raw       string   `parquet:"path_b64,optional"`
	Kind      string   `parquet:"kind,dict"`
	Mode      int32    `parquet:"mode"`
	UID       int64    `parquet:"uid"`
	GID       int64    `parquet:"gid"`
	Size      int64    `parquet:"size"`
	Mtime     *int64   `parquet:"mtime,optional,timestamp(microsecond)"`
	Ctime     *int64   `parquet:"ctime,optional,timestamp(microsecond)"`
	Btime     *int64   `parquet:"btime,optional,timestamp(microsecond)"`
	Inode     uint64   `parquet:"inode"`
	Nlink     int64    `parquet:"nlink"`
	Rdev      uint64   `parquet:"rdev"`
	Target    string   `parquet:"target,optional"`
	TargetRaw string   `parquet:"target_b64,optional"`
	Flags     []string `parquet:"flags,list"`
}

func newEntryRow(path string, e *backup.Entry) entryRow {
	r := entryRow{
		Path: validText(path), Raw: backup.RawBase64(path), Kind: e.Kind.String(), Mode: int32(e.Mode), UID: int64(e.UID), GID: int64(e.GID),
		Size: e.Size, Mtime: microseconds(e.Mtime), Ctime: microseconds(e.Ctime), Btime: microseconds(e.Btime),
		Inode: e.Inode, Nlink: int64(e.Nlink), Rdev: e.Rdev, Target: validText(e.Target), TargetRaw: backup.RawBase64(e.Target),
	}
	for _, f := range entryFlags {
		if e.Flags&f.flag != 0 {
			r.Flags = append(r.Flags, f.name)
		}
	}
	return r
}

// microseconds returns a time as Parquet has it; nil: there is none, or it is more than 290,000
// years away.
func microseconds(t backup.Time) *int64 {
	const most = math.MaxInt64/1_000_000 - 1
	if t.IsZero() || t.Sec > most || t.Sec < -most {
		return nil
	}
	at := t.Sec*1_000_000 + int64(t.Nsec)/1000
	return &at
}
