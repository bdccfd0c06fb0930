package entindex

import (
	"math"

	"github.com/bctl/bctl/internal/backup"
	"github.com/bctl/bctl/internal/index/ent"
)

// maxCount is the largest value of a count, and of a sum of counts.
const maxCount = backup.MaxCount

func validCounts(c *backup.Counts) bool {
	for _, n := range c.Integers() {
		if *n < 0 || *n > maxCount {
			return false
		}
	}
	for _, f := range c.Seconds() {
		if !(*f >= 0 && *f <= maxCount) || math.IsNaN(*f) {
			return false
		}
	}
	return true
}

// validCorrection is validCounts for a batch, whose files and bytes correct the counts of the
// walker: files that had vanished when they were to be read are subtracted.
func validCorrection(c *backup.Counts) bool {
	rest := *c
	if rest.Files < -maxCount || rest.Bytes < -maxCount {
		return false
	}
	rest.Files, rest.Bytes = max(rest.Files, 0), max(rest.Bytes, 0)
	return validCounts(&rest)
}

func countsOf(s *ent.Snapshot) backup.Counts {
	return backup.Counts{
		Files: s.Files, Directories: s.Directories, Bytes: s.Bytes,
		FilesNew: s.FilesNew, FilesChanged: s.FilesChanged, FilesUnchanged: s.FilesUnchanged,
		StatCalls: s.StatCalls, NewBytes: s.NewBytes, StoredBytes: s.StoredBytes, ReadBytes: s.ReadBytes, Errors: s.Errors,
		Vanished: s.Vanished, Carried: s.Carried, Torn: s.Torn,
		FilesJudged: s.FilesJudged, FilesRenamed: s.FilesRenamed, TypesLost: s.TypesLost, FilesOpaque: s.FilesOpaque,
		WalkSeconds: s.WalkSeconds, ReadSeconds: s.ReadSeconds, HashSeconds: s.HashSeconds, CompressSeconds: s.CompressSeconds,
		SealSeconds: s.SealSeconds, UploadSeconds: s.UploadSeconds, CommitSeconds: s.CommitSeconds,
	}
}

// setCounts stores sums. They are limited to the range from 0 to maxCount, so that no forged result
// can produce a sum that the database refuses.
func setCounts(u *ent.SnapshotUpdate, c backup.Counts) *ent.SnapshotUpdate {
	for _, n := range c.Integers() {
		*n = max(0, min(*n, maxCount))
	}
	return u.SetFiles(c.Files).SetDirectories(c.Directories).SetBytes(c.Bytes).
		SetFilesNew(c.FilesNew).SetFilesChanged(c.FilesChanged).SetFilesUnchanged(c.FilesUnchanged).
		SetStatCalls(c.StatCalls).SetNewBytes(c.NewBytes).SetStoredBytes(c.StoredBytes).SetReadBytes(c.ReadBytes).SetErrors(c.Errors).
		SetVanished(c.Vanished).SetCarried(c.Carried).SetTorn(c.Torn).
		SetFilesJudged(c.FilesJudged).SetFilesRenamed(c.FilesRenamed).SetTypesLost(c.TypesLost).SetFilesOpaque(c.FilesOpaque).
		SetWalkSeconds(c.WalkSeconds).SetReadSeconds(c.ReadSeconds).SetHashSeconds(c.HashSeconds).
		SetCompressSeconds(c.CompressSeconds).SetSealSeconds(c.SealSeconds).SetUploadSeconds(c.UploadSeconds).SetCommitSeconds(c.CommitSeconds)
}
