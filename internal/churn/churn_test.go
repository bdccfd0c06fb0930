package churn

import (
	"fmt"
	"strings"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

// history returns snapshots with so many opaque files, newest first, of a shard with a million.
func history(opaque ...int64) (list []backup.Snapshot) {
	for i, n := range opaque {
		number := backup.SnapshotNumber(len(opaque) - i)
		list = append(list, backup.Snapshot{Number: number, Base: number - 1, Counts: backup.Counts{Files: 1_000_000, FilesOpaque: n}})
	}
	return list
}

func TestJudge(t *testing.T) {
	usually := make([]int64, 45)
	for i := range usually {
		usually[i] = 600
	}
	for name, c := range map[string]struct {
		opaque []int64
		alarms []int // whose snapshots have an alarm
		want   Verdict
	}{
		"the first":           {[]int64{0}, nil, Verdict{Limit: 10_000}},
		"5%":                  {[]int64{50_000, 0, 0}, nil, Verdict{Score: 5000, Opaque: 50_000, Limit: 10_000, Clean: 2}},
		"some":                {[]int64{5000, 0, 0}, nil, Verdict{Score: 500, Opaque: 5000, Limit: 10_000, Clean: 2}},
		"nothing more":        {[]int64{0, 9999, 0}, nil, Verdict{Opaque: 9999, Limit: 10_000, Clean: 1}},
		"together":            {[]int64{5000, 0, 5000, 0}, nil, Verdict{Score: 1000, Opaque: 10_000, Limit: 10_000, Clean: 1}},
		"outside the window":  {[]int64{5000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5000, 0}, nil, Verdict{Score: 499, Opaque: 5000, Limit: 10_001, Clean: 11}},
		"after an alarm":      {[]int64{5000, 0, 50_000, 0}, []int{2}, Verdict{Score: 500, Opaque: 5000, Limit: 10_000, Clean: 3}},
		"as usual":            {append([]int64{1200}, usually...), nil, Verdict{Score: 549, Opaque: 6600, Limit: 12_001, Clean: 36}},
		"much more than that": {append([]int64{12_000}, usually...), nil, Verdict{Score: 1449, Opaque: 17_400, Limit: 12_001, Clean: 36}},
	} {
		all := history(c.opaque...)
		for _, i := range c.alarms {
			all[i].Alarm = "encrypted"
		}
		got := Judge(&all[0], all[1:])
		if got.Score != c.want.Score || got.Opaque != c.want.Opaque || got.Limit != c.want.Limit || got.Clean != c.want.Clean {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	small := backup.Snapshot{Base: 1, Counts: backup.Counts{Files: 50, FilesOpaque: 19}}
	if v := Judge(&small, nil); v.Alarm() || v.Limit != leastFiles {
		t.Errorf("%+v of a small shard", v)
	}
}

func TestKnown(t *testing.T) {
	s := backup.Snapshot{Base: 1, Counts: backup.Counts{FilesNew: 2, FilesChanged: 3, FilesJudged: 5}}
	if !Known(&s) {
		t.Error("all files were judged")
	}
	if s.Counts.FilesJudged--; Known(&s) {
		t.Error("one file was not judged")
	}
}

// A tally is exact, and keeps few directories.
func TestTally(t *testing.T) {
	tally := NewTally(20)
	for i := range 10_000 {
		tally.Add(fmt.Sprintf("home/user%d/d%d/%d", i%10, i%100, i), uint32(i%7), Count{Opaque: 1})
	}
	tally.Add("", 1, Count{New: 1})
	dirs, opaque := tally.Directories(), int64(0)
	for _, d := range dirs {
		opaque += d.Opaque
	}
	if len(dirs) != 11 || opaque != 10_000 || dirs[0].Of != "home/user0" || dirs[0].Opaque != 1000 || dirs[10].Of != "" || len(tally.Owners()) != 7 {
		t.Errorf("%d opaque files in %+v, of %+v", opaque, dirs, tally.Owners())
	}
	if upTo("a/b/c", 2) != "a/b" || upTo("a", 2) != "a" || upTo("a/b", 0) != "" {
		t.Error("upTo")
	}
}

// What an alarm says fits the index, whatever the names are.
func TestTextOfAnAlarm(t *testing.T) {
	tally := NewTally(alarmTally)
	for i := range uint32(30) {
		tally.Add(strings.Repeat(string(rune('a'+i)), 300)+"\xff\x00\"/"+strings.Repeat("\x01", 300), i, Count{Opaque: 1})
	}
	s := backup.Snapshot{Number: 9, Counts: backup.Counts{FilesOpaque: 30}}
	got := text(&s, &Verdict{Opaque: 50, Clean: 7}, tally, backup.Time{Sec: 1})
	for _, part := range []string{"30 files of snapshot 9", "50 with those", "1970-01-01T00:00:01Z", "last clean snapshot is 7", "and 25 more owners"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q lacks %q", got, part)
		}
	}
	if len(got) > alarmBytes || strings.ToValidUTF8(got, "") != got {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}
