// Package indextest is the conformance suite of index.Index. An adapter's test is
//
//	func TestIndex(t *testing.T) { indextest.Run(t, freshDatabase, migratedDatabase) }
package indextest

import "testing"

// Run runs the suite. fresh returns an empty database for one test. migrated returns one with the
// tables that Migrate creates, or also an empty one.
func Run(t *testing.T, fresh, migrated func(testing.TB) Database) {
	t.Run("Schema", func(t *testing.T) { testSchema(t, fresh) })
	for _, test := range []struct {
		name string
		run  func(*testing.T, func(testing.TB) Database)
	}{
		{"Repository", testRepository},
		{"FilersAndShards", testFilersAndShards},
		{"Filers", testFilers},
		{"Shards", testShards},
		{"Retire", testRetire},
		{"RetireWhileBeginning", testRetireWhileBeginning},
		{"Lists", testLists},
		{"BeginSnapshot", testBeginSnapshot},
		{"EndedCalls", testEndedCalls},
		{"OneRunningSnapshot", testOneRunningSnapshot},
		{"Snapshots", testSnapshots},
		{"ClockGoesBack", testClockGoesBack},
		{"Bad", testBad},
		{"Roots", testRoots},
		{"Compare", testCompare},
		{"ShardKeys", testShardKeys},
		{"Journal", testJournal},
		{"Unrecorded", testUnrecorded},
		{"Catalogs", testCatalogs},
		{"Claims", testClaims},
		{"ClaimsOfSnapshots", testClaimsOfSnapshots},
		{"ConcurrentClaims", testConcurrentClaims},
		{"Limits", testLimits},
		{"ByteShares", testByteShares},
		{"ChangedByteShares", testChangedByteShares},
		{"Turns", testTurns},
		{"Queued", testQueued},
		{"Sites", testSites},
		{"ConcurrentLimits", testConcurrentLimits},
		{"Extend", testExtend},
		{"ClockWasAhead", testClockWasAhead},
		{"Leading", testLeading},
		{"OneLeader", testOneLeader},
		{"Policies", testPolicies},
		{"Plans", testPlans},
		{"Unplan", testUnplan},
		{"SchedulerFenced", testSchedulerFenced},
		{"BeginDueOnce", testBeginDueOnce},
		{"Deadlines", testDeadlines},
		{"Cancel", testCancel},
		{"BaseCounts", testBaseCounts},
		{"Source", testSource},
		{"LateAttempts", testLateAttempts},
		{"Parts", testParts},
		{"ConcurrentApply", testConcurrentApply},
		{"Locate", testLocate},
		{"CondemnedChunks", testCondemnedChunks},
		{"BatchesRelyOnPacks", testBatchesRelyOnPacks},
		{"ChunkCopies", testChunkCopies},
		{"ManyCopies", testManyCopies},
		{"PlacesInObjects", testPlacesInObjects},
		{"ChunkLists", testChunkLists},
		{"NestedLists", testNestedLists},
		{"CondemnWhileApplying", testCondemnWhileApplying},
		{"ClaimCommit", testClaimCommit},
		{"ClaimCommitAtOnce", testClaimCommitAtOnce},
		{"InvalidResults", testInvalidResults},
		{"MixedSnapshots", testMixedSnapshots},
		{"AppliedThenError", testAppliedThenError},
		{"Commit", testCommit},
		{"Fail", testFail},
		{"Problems", testProblems},
		{"Names", testNames},
		{"DamagedPages", testDamagedPages},
		{"Versions", testVersions},
		{"OrderOfResults", testOrderOfResults},
		{"UnchangedTree", testUnchangedTree},
		{"Walking", testWalking},
		{"Marks", testMarks},
		{"ManyPages", testManyPages},
		{"Subtree", testSubtree},
		{"Interrupted", testInterrupted},
		{"History", testHistory},
		{"Histories", testHistories},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, migrated) })
	}
}
