// Package indextest is the conformance suite of index.Index. An adapter's test is
//
//	func TestIndex(t *testing.T) { indextest.Run(t, freshDatabase, migratedDatabase) }
package indextest

import "testing"

// A test is one of the suite.
type test struct {
	name string
	run  func(*testing.T, func(testing.TB) Database)
}

func run(t *testing.T, tests []test, database func(testing.TB) Database) {
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { test.run(t, database) })
	}
}

// Run runs the suite. fresh returns an empty database for one test. migrated returns one with the
// tables that Migrate creates, or also an empty one.
func Run(t *testing.T, fresh, migrated func(testing.TB) Database) {
	RunCalls(t, fresh, migrated)
	run(t, []test{
		{"ManyCopies", testManyCopies},
		{"ManyPages", testManyPages},
		{"PathHoldsInAnyOrder", testPathHoldsInAnyOrder},
		{"Purge", testPurge},
		{"History", testHistory},
		{"Histories", testHistories},
	}, migrated)
}

// RunCalls runs what makes every call in every way, without large sets and random histories. It is
// for an index that calls another one, for which Run runs.
func RunCalls(t *testing.T, fresh, migrated func(testing.TB) Database) {
	t.Run("Schema", func(t *testing.T) { testSchema(t, fresh) })
	run(t, []test{
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
		{"PoliciesAreLogged", testPoliciesAreLogged},
		{"Plans", testPlans},
		{"Unplan", testUnplan},
		{"SchedulerFenced", testSchedulerFenced},
		{"ForgetDue", testForgetDue},
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
		{"PackThatNeverComes", testPackThatNeverComes},
		{"ChunkCopies", testChunkCopies},
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
		{"NewNames", testNewNames},
		{"DamagedNames", testDamagedNames},
		{"NamesBesideOldServices", testNamesBesideOldServices},
		{"NamesOfHistories", testNamesOfHistories},
		{"DamagedPages", testDamagedPages},
		{"Versions", testVersions},
		{"OrderOfResults", testOrderOfResults},
		{"UnchangedTree", testUnchangedTree},
		{"Walking", testWalking},
		{"Marks", testMarks},
		{"Subtree", testSubtree},
		{"Interrupted", testInterrupted},
		{"Patches", testPatches},
		{"PatchesOfNothing", testPatchesOfNothing},
		{"PatchesNeedTheirBases", testPatchesNeedTheirBases},
		{"PatchesOfDamagedPages", testPatchesOfDamagedPages},
		{"PatchesOfInterruptedPages", testPatchesOfInterruptedPages},
		{"PatchesBesideOldServices", testPatchesBesideOldServices},
		{"Forget", testForget},
		{"Forgotten", testForgotten},
		{"ForgetHead", testForgetHead},
		{"Holds", testHolds},
		{"HoldWhileForgetting", testHoldWhileForgetting},
		{"PathHolds", testPathHolds},
		{"Readings", testReadings},
		{"Brake", testBrake},
		{"BrakeOfShards", testBrakeOfShards},
		{"BrakeOfRepository", testBrakeOfRepository},
		{"BrakeOfPurges", testBrakeOfPurges},
		{"BrakeWindow", testBrakeWindow},
		{"TwoOperators", testTwoOperators},
		{"Needed", testNeeded},
		{"Prunes", testPrunes},
		{"PruneWork", testPruneWork},
		{"CatalogNumbers", testCatalogNumbers},
		{"Locks", testLocks},
		{"Scrub", testScrub},
		{"Undated", testUndated},
		{"ScrubParity", testScrubParity},
		{"ScrubDue", testScrubDue},
		{"ScrubJournal", testScrubJournal},
		{"Split", testSplit},
		{"DropVersions", testDropVersions},
		{"DropVersionsOfRetired", testDropVersionsOfRetired},
		{"Fence", testFence},
		{"References", testReferences},
		{"Condemn", testCondemn},
		{"Move", testMove},
		{"MoveNew", testMoveNew},
		{"Acquitted", testAcquitted},
		{"DropPlaces", testDropPlaces},
		{"DropLists", testDropLists},
		{"Chains", testChains},
		{"Remove", testRemove},
		{"PurgeRefused", testPurgeRefused},
		{"PurgePatches", testPurgePatches},
		{"PurgeProblems", testPurgeProblems},
		{"Checking", testChecking},
		{"Reread", testReread},
		{"LoseLists", testLoseLists},
		{"LostPacks", testLostPacks},
		{"Repairing", testRepairing},
		{"Drills", testDrills},
		{"Recognize", testRecognize},
		{"NextSection", testNextSection},
		{"Parity", testParity},
		{"Comparing", testComparing},
		{"Deletions", testDeletions},
		{"AmendFenced", testAmendFenced},
	}, migrated)
}
