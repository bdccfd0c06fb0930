package store

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"
)

// The names of what a mirror notes about its objects (docs/formats/store.md#mirror). Other stores
// have none of these objects.
const (
	MirrorPrefix = "mirror/"

	SumsPrefix    = MirrorPrefix + "sums/"
	GonePrefix    = MirrorPrefix + "gone/"
	DeletedPrefix = MirrorPrefix + "deleted/"
)

// MirroredPrefixes are the beginnings of the names of all objects that belong to a repository,
// beside ConfigName, in the order in which a mirror writes them: what refers to others comes later.
var MirroredPrefixes = []string{PacksPrefix, ParityPrefix, KeysPrefix, SegmentsPrefix, CatalogPrefix, CommitsPrefix, IndexPrefix}

// GoneName is the name of the note that an object of a mirror was found to be gone from the store
// that it mirrors, at a time in whole seconds.
func GoneName(object string, at time.Time) string {
	return fmt.Sprintf("%s%s/%016x", GonePrefix, object, at.Unix())
}

// ParseGoneName is the inverse of GoneName.
func ParseGoneName(name string) (object string, at time.Time, ok bool) {
	rest, is := strings.CutPrefix(name, GonePrefix)
	cut := strings.LastIndexByte(rest, '/')
	if !is || cut < 1 {
		return "", at, false
	}
	seconds, err := strconv.ParseInt(rest[cut+1:], 16, 64)
	object, at = rest[:cut], time.Unix(seconds, 0)
	return object, at, err == nil && seconds > 0 && name == GoneName(object, at)
}

// A Lister lists objects, as a Store.
type Lister interface {
	List(ctx context.Context, prefix string) iter.Seq2[Object, error]
}

// Records yields the commit records of a store, in no particular order. In a mirror, it leaves out
// those that are gone from the store that it mirrors: they stay for a time, but their snapshots are
// forgotten.
func Records(ctx context.Context, s Lister) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		gone := map[string]bool{}
		for o, err := range s.List(ctx, GonePrefix+CommitsPrefix) {
			if err != nil {
				yield(o, err)
				return
			}
			if object, _, ok := ParseGoneName(o.Name); ok {
				gone[object] = true
			}
		}
		for o, err := range s.List(ctx, CommitsPrefix) {
			if !gone[o.Name] && !yield(o, err) {
				return
			}
		}
	}
}
