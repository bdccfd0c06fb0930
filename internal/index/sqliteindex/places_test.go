package sqliteindex

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index"
)

// Each pack and each frame that the index can have is read as it is, although some are no valid
// characters.
func TestJoinedPlaces(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("CREATE TABLE chunks (id BLOB NOT NULL PRIMARY KEY, pack INTEGER NOT NULL, frame INTEGER NOT NULL) STRICT, WITHOUT ROWID"); err != nil {
		t.Fatal(err)
	}
	var want []index.PlaceOf
	numbers := []int64{0, 1, 0x7f, 0x80, 0x7ff, 0x800, 0xd800, 0xdfff, 0xfffd, 0xffff, 0x10000, 0xfffff, index.MaxChunks - 1}
	for _, high := range numbers {
		for _, low := range numbers {
			place := index.PlaceOf{Pack: high<<placeBits | low, Frame: uint32(low)}
			place.Chunk[0], place.Chunk[1], place.Chunk[15] = byte(len(want)>>8), byte(len(want)), 0xff
			want = append(want, place)
			if _, err := db.Exec("INSERT INTO chunks VALUES (?, ?, ?)", place.Chunk[:], place.Pack, place.Frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	from, to := idRange(0, 256)
	var joined []byte
	if err := db.QueryRow(joinedPlaces, from, to).Scan(&joined); err != nil {
		t.Fatal(err)
	}
	got, err := splitPlaces(joined)
	if err != nil || len(got) != len(want) {
		t.Fatal(len(got), err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	for _, cut := range []int{1, 15, 16, 17, len(joined) - 1} {
		if _, err := splitPlaces(joined[:cut]); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("the first %d bytes: %v", cut, err)
		}
	}
}
