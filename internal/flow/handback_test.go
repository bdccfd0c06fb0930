package flow

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bctl/bctl/internal/backup"
)

// A worker that hands work back says so until it has not done so for a while.
func TestHandedBack(t *testing.T) {
	var h handBacks
	one, two := backup.SnapshotID{1}, backup.SnapshotID{2}
	now := time.Unix(1_000_000, 0)
	expect := func(times int, why string, list ...HandBack) {
		t.Helper()
		i := Instance{HandedBack: 99, HandedBackWhy: "before", HandBacks: []HandBack{{Why: "before"}}}
		h.describe(now, &i)
		if i.HandedBack != times || i.HandedBackWhy != why || !reflect.DeepEqual(i.HandBacks, list) {
			t.Errorf("%d times, %q: %v; want %d, %q: %v", i.HandedBack, i.HandedBackWhy, i.HandBacks, times, why, list)
		}
	}
	expect(0, "")
	h.add(now, one, errors.New("first"), true)
	now = now.Add(troubleLasts / 2)
	h.add(now, two, errors.New("second"), false)
	h.add(now, one, errors.New("second"), false)
	expect(3, "second", HandBack{"second", 2, false, []backup.SnapshotID{one, two}}, HandBack{"first", 1, true, []backup.SnapshotID{one}})
	now = now.Add(troubleLasts)
	expect(3, "second", HandBack{"second", 2, false, []backup.SnapshotID{one, two}})
	h.saw(two)
	expect(3, "second", HandBack{"second", 2, false, []backup.SnapshotID{one, two}})
	now = now.Add(1)
	expect(0, "")
	h.add(now, one, errors.New("third"), true)
	h.saw(two)
	expect(1, "third", HandBack{"third", 1, true, []backup.SnapshotID{one}})
	h.saw(one)
	expect(1, "third")
}

// The description of a worker with many errors of many snapshots has its usual size, and names
// all snapshots that fit.
func TestManyHandBacks(t *testing.T) {
	var h handBacks
	now := time.Unix(1_000_000, 0)
	for n := range 2 * maxHandBacks {
		now = now.Add(time.Millisecond)
		h.add(now, backup.SnapshotID{byte(n), byte(n >> 8)}, fmt.Errorf("%d: %s", n, strings.Repeat("x", 1000)), n%2 == 0)
	}
	i := Instance{ID: "A", Name: strings.Repeat("n", maxWorkerBytes), Version: strings.Repeat("v", maxVersionBytes), Reason: strings.Repeat("r", maxReasonBytes)}
	h.describe(now, &i)
	snapshots := 0
	for n := range i.HandBacks {
		snapshots += len(i.HandBacks[n].Snapshots)
	}
	if len(i.HandBacks) != maxErrors+2 || snapshots != maxHandBacks {
		t.Errorf("%d errors of %d snapshots", len(i.HandBacks), snapshots)
	}
	data, err := marshal(serviceToWire(&i))
	if err != nil || len(data) > maxServiceBytes {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	_, back, err := decodeService(data)
	if err != nil || !reflect.DeepEqual(back.HandBacks, i.HandBacks) {
		t.Errorf("%+v, %v; want %+v", back.HandBacks, err, i.HandBacks)
	}
}
