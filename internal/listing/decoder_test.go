package listing

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// A Decoder decodes each page as Decode does, whatever it has decoded before it.
func TestDecoderIsUsedAgain(t *testing.T) {
	var listings [][]byte
	for _, p := range []*backup.Page{{Entries: []backup.Entry{}}, smallPage(), everyKind(), secondPage(), manyFiles(3), manyFiles(200)} {
		data, err := Encode(nil, p)
		if err != nil {
			t.Fatal(err)
		}
		listings = append(listings, data, plainOf(t, p))
	}
	for _, data := range malformed {
		listings = append(listings, data)
	}
	var d Decoder
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		data := listings[random.IntN(len(listings))]
		want, wantErr := Decode(data)
		got, err := d.Decode(data)
		if (err == nil) != (wantErr == nil) || !reflect.DeepEqual(got, want) {
			t.Fatalf("%x: %v and %v, or other pages", data[:min(len(data), 32)], err, wantErr)
		}
	}
}
