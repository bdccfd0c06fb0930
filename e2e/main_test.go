// Package e2e_test tests the promises of bctl as a whole, with real processes and real servers. The
// tests use the command line, and check the results with package treetest, with SQL, and by reading
// the files of the store.
//
//	embedded_test.go   everything comes back; what has not changed costs nothing; random changes
//	killed_test.go     a backup is killed or interrupted: the next one reuses the stored content
//	fleet_test.go      services over NATS, Postgres and a store; each killed in mid-run
//	chaos_test.go      queues deleted; messages lost, late, twice (I2, I3)
//	services_test.go   services hang, are cut off and replaced; NATS nodes die
//	worker_test.go     services are listed, drained, and missed when they die
//	filers_test.go     several filers: limits, sites, one that hangs, source snapshots, cancel
//	faults_test.go     writes to the store and transactions that fail, or seem to
//	rotation_test.go   all certificates and keys are rotated while a backup runs
//	soak_test.go, soak_retention_test.go
//	                   random changes and faults of all kinds, while snapshots are forgotten
//	locks_test.go      what is kept is locked in the store, and space is free when locks end
//	histories_test.go, histories_repo_test.go
//	                   random histories on one machine: kills, pauses, moved clocks
//	upgrade_test.go    services of the release before this one beside new ones
//	disaster_test.go, disaster_fleet_test.go, disaster_upgrade_test.go, disaster_page_test.go
//	                   disasters, with the commands of docs/disaster-recovery.md
//	journal_damage_test.go   bits of the journal flipped on the disk of an S3 server
//	cost_test.go       what a snapshot costs NATS and Postgres
//	missing_test.go    commands that wait report the reason
//	errors_test.go     messages and exit status
//	messages_test.go   messages replayed and forged
//	lies_test.go       packs and listings that lie about their lengths
//	secrets_test.go, content_test.go     secrets are shown nowhere, content only with an identity
//	stolen_test.go, strangers_test.go    stolen credentials, over TLS (docs/security.md)
//	pagecache_test.go, strace_test.go    traces in memory, and system calls
//
// A test that takes long, or needs an S3 server or a previous release, says so with package
// testtarget. E2E_SEED=n repeats random changes, and faults; E2E_SOAK_MINUTES=n soaks for longer
// (make soak); E2E_HISTORIES=n makes so many histories (make histories); BCTL_E2E_PROGRAM=path
// tests another build of bctl.
package e2e_test

import (
	"os"
	"testing"

	"github.com/bctl/bctl/e2e/fleet"
	"github.com/bctl/bctl/internal/testenv"
)

func TestMain(m *testing.M) {
	status := testenv.InMemory{M: m}.Run()
	fleet.Cleanup()
	os.Exit(status)
}
