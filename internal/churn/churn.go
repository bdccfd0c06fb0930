// Package churn decides whether the changes of a snapshot look as if somebody encrypted the files.
// It compares the number of files that became opaque (backup.Opaque) with the number of all files,
// and with what was usual in the shard before (decision 63).
//
// # Files
//
//	churn.go  the score of a snapshot
//	tally.go  counts changes by directory and by owner
//	alarm.go  what an alarm says
package churn

import "github.com/bctl/bctl/internal/backup"

const (
	// window is how many snapshots count together, so that a slow attack is found.
	window = 10
	// History is how many earlier snapshots Judge wants.
	History = 50
	// An alarm needs this many files, and one in share of all files. mostFiles are enough in a
	// large shard.
	leastFiles = 20
	share      = 100
	mostFiles  = 10_000
	// usual: an alarm needs more than this many times what was seen in the past.
	usual = 2
	// full is the score of an alarm. The limit of scores keeps them readable.
	full     = 1000
	maxScore = 1000 * full
)

// A Verdict is about one snapshot.
type Verdict struct {
	// Score is in thousandths: the files that became opaque in the window, as a share of Limit.
	Score  int64
	Opaque int64 // files, in the window
	Limit  int64
	// Clean is the last snapshot before any file of the window became opaque; zero: there is none.
	Clean   backup.SnapshotNumber
	CleanID backup.SnapshotID
}

// Alarm reports whether the snapshot raises an alarm.
func (v *Verdict) Alarm() bool { return v.Score >= full }

// Known reports whether all new and changed files of a snapshot were judged. Services of older
// versions judge none.
func Known(s *backup.Snapshot) bool {
	return s.Base == 0 || s.Counts.FilesJudged >= s.Counts.FilesNew+s.Counts.FilesChanged
}

// Judge judges a snapshot. history are the committed snapshots of the shard before it, newest
// first, up to History. The window of a snapshot begins after the last alarm, because that alarm
// has told of what was before.
func Judge(now *backup.Snapshot, history []backup.Snapshot) Verdict {
	files := now.Counts.Files
	if len(history) > 0 {
		files = max(files, history[0].Counts.Files)
	}
	v := Verdict{Opaque: now.Counts.FilesOpaque, Limit: max(leastFiles, min(files/share, mostFiles))}
	if now.Base > 0 && v.Opaque > 0 {
		v.Clean, v.CleanID = now.Base, now.BaseID
	}
	n := sumOf(history, window-1, func(s *backup.Snapshot) {
		if v.Opaque += s.Counts.FilesOpaque; s.Counts.FilesOpaque > 0 {
			v.Clean, v.CleanID = s.Base, s.BaseID
		}
	})
	for i := n; i < len(history); i++ {
		past := int64(0)
		sumOf(history[i:], window, func(s *backup.Snapshot) { past += s.Counts.FilesOpaque })
		v.Limit = max(v.Limit, usual*past+1)
	}
	if now.Counts.FilesOpaque > 0 { // otherwise nothing happened in this snapshot
		v.Score = min(v.Opaque*full/v.Limit, maxScore)
	}
	return v
}

// sumOf calls add with up to most snapshots, until one with an alarm, and returns their number.
func sumOf(history []backup.Snapshot, most int, add func(*backup.Snapshot)) int {
	for i := range history[:min(len(history), most)] {
		if history[i].Alarm != "" {
			return i
		}
		add(&history[i])
	}
	return min(len(history), most)
}

// Removed returns how many files the snapshot's base had and the snapshot has not. base has the
// counts of the base.
func Removed(s *backup.Snapshot, base *backup.Counts) int64 {
	return max(base.Files+s.Counts.FilesNew-s.Counts.Files, 0)
}
