package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/source/treetest"
)

// An entryOf has the attributes that both forms of a list have.
type entryOf struct {
	Path      string     `json:"path" parquet:"path"`
	Raw       string     `json:"path_b64" parquet:"path_b64,optional"`
	Kind      string     `json:"kind" parquet:"kind"`
	Mode      string     `json:"mode" parquet:"-"`
	Number    int32      `json:"-" parquet:"mode"`
	UID       int64      `json:"uid" parquet:"uid"`
	GID       int64      `json:"gid" parquet:"gid"`
	Size      int64      `json:"size" parquet:"size"`
	Mtime     *time.Time `json:"mtime" parquet:"mtime,optional,timestamp(microsecond)"`
	Ctime     *time.Time `json:"ctime" parquet:"ctime,optional,timestamp(microsecond)"`
	Btime     *time.Time `json:"btime" parquet:"btime,optional,timestamp(microsecond)"`
	Inode     uint64     `json:"inode" parquet:"inode"`
	Nlink     int64      `json:"nlink" parquet:"nlink"`
	Rdev      uint64     `json:"rdev" parquet:"rdev"`
	Target    string     `json:"target" parquet:"target,optional"`
	TargetRaw string     `json:"target_b64" parquet:"target_b64,optional"`
	Flags     []string   `json:"flags" parquet:"flags,list"`
}

// A list of a snapshot in Parquet has what the list in JSON has.
func TestParquetHasWhatJSONHas(t *testing.T) {
	t.Parallel()
	repo, tree, file := fleet.NewRepo(t), t.TempDir(), filepath.Join(t.TempDir(), "list.parquet")
	treetest.Make(t, tree, everyKind())
	repo.Backup(tree)
	for _, given := range [][]string{{"ls", "-R", "latest"}, {"ls", "latest:links"}, {"ls", "latest:etc/passwd"}} {
		var want []entryOf
		decoder := json.NewDecoder(bytes.NewReader([]byte(repo.Must(append(given, "--json")...).Stdout)))
		for decoder.More() {
			var e entryOf
			if err := decoder.Decode(&e); err != nil {
				t.Fatal(err)
			}
			want = append(want, e)
		}
		if out := repo.Must(append(given, "--parquet", file)...); out.Stdout != "" {
			t.Errorf("%q --parquet printed %q", given, out.Stdout)
		}
		got, err := parquet.ReadFile[entryOf](file)
		if err != nil {
			t.Fatal(err)
		}
		for n := range got {
			got[n].Mode, got[n].Number = fmt.Sprintf("%04o", got[n].Number), 0
		}
		same := cmp.Options{
			cmp.Comparer(func(a, b *time.Time) bool {
				return a == nil && b == nil || a != nil && b != nil && a.Truncate(time.Microsecond).Equal(b.Truncate(time.Microsecond))
			}),
			cmp.Comparer(func(a, b []string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }),
		}
		if diff := cmp.Diff(want, got, same); diff != "" || len(want) == 0 {
			t.Errorf("%q (- JSON, + Parquet): %s", given, diff)
		}
	}
}
