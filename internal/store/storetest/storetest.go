// Package storetest is the conformance suite of store.Store. Every adapter passes it, so code above
// the port need not know which one it uses.
//
//	func TestConformance(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) store.Store { … })
//	}
package storetest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/store"
)

// Run runs the suite. open returns an empty store that nothing else uses; the suite closes it.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, c := range []struct {
		name string
		test func(*testing.T, store.Store)
	}{
		{"WhatWasPutIsGot", testPutGet},
		{"AnObjectMayBeEmpty", testEmpty},
		{"TheSameBytesMayBePutAgain", testPutAgain},
		{"TheBufferIsTheCallersAgain", testBuffer},
		{"LargeObject", testLarge},
		{"Ranges", testRanges},
		{"ARangeIsAppended", testAppend},
		{"AShortObjectIsCorrupt", testShort},
		{"ImpossibleRangesAreInvalid", testInvalidRanges},
		{"GetIsBounded", testGetBound},
		{"WhatIsNotThereIsNotFound", testNotFound},
		{"OddNamesAreInvalid", testNames},
		{"PutNewOfATakenName", testPutNew},
		{"DeleteTwice", testDelete},
		{"DeleteMany", testDeleteMany},
		{"ListByPrefix", testList},
		{"ListOfNothing", testListNothing},
		{"ListStopsWhenToldTo", testListStops},
		{"ConcurrentPutsOfManyNames", testConcurrentNames},
		{"ConcurrentPutsOfOneName", testConcurrentSame},
		{"ConcurrentPutNewHasOneWinner", testConcurrentNew},
		{"NoReaderSeesAPart", testAtomic},
		{"AContextThatEnded", testContext},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			c.test(t, s)
		})
	}
}

// content returns n bytes that do not compress. They are the same for the same seed.
func content(n int, seed uint64) []byte {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	data := make([]byte, n)
	if _, err := rand.NewChaCha8(key).Read(data); err != nil {
		panic(err)
	}
	return data
}

func put(t testing.TB, s store.Store, name string, data []byte) {
	t.Helper()
	if err := s.Put(t.Context(), name, data); err != nil {
		t.Fatal(err)
	}
}

func wantContent(t testing.TB, s store.Store, name string, want []byte) {
	t.Helper()
	got, err := s.Get(t.Context(), name, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: got %d bytes that are not the %d that were put", name, len(got), len(want))
	}
}

// wantError checks that err wraps kind, and names the object and the store.
func wantError(t testing.TB, s store.Store, err, kind error, name string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("got %v, want an error that is %q", err, kind)
	}
	var detailed *store.Error
	if !errors.As(err, &detailed) || !strings.Contains(err.Error(), s.String()) || !strings.Contains(err.Error(), name) {
		t.Fatalf("%q does not name the store %q and the object %q", err, s, name)
	}
}

// names lists the objects below prefix.
func names(ctx context.Context, t testing.TB, s store.Store, prefix string) map[string]int64 {
	t.Helper()
	found := map[string]int64{}
	for object, err := range s.List(ctx, prefix) {
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := found[object.Name]; twice {
			t.Fatalf("%s is listed twice", object.Name)
		}
		found[object.Name] = object.SizeBytes
	}
	return found
}
