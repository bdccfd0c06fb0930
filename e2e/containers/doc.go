// Package containers tests the fleet that deploy/compose.yaml describes, in containers on private
// networks. Its tests break containers, networks and servers in the middle of a backup, and check
// the result with package fleet.
//
//	docker_test.go     is there Docker
//	images_test.go     images made here, where no registry can be reached
//	project_test.go    docker compose up, what is where, and commands in containers
//	container_test.go  kill, pause, part, stop
//	relay_test.go      addresses for what the tests themselves ask servers
//	topology_test.go   what the project promises: users, capabilities, networks, volumes, TLS
//	backup_test.go     a backup that is under way, and its judges
//	faults_test.go     the faults
//
// The tests need a Docker daemon on this machine. They must run as root, to read what containers
// have restored. They are skipped otherwise, unless BCTL_REQUIRE_DOCKER is 1. Everything that they
// start has the label com.docker.compose.project=bctl-e2e-…, and is removed when they end.
//
//	BCTL_REQUIRE_DOCKER=1            without Docker, fail
//	NATS_IMAGE, POSTGRES_IMAGE, VERSITYGW_IMAGE, MC_IMAGE
//	                                 use these; else images of the programs that are installed
//	                                 here (Postgres) or that e2e/tool.sh builds
//	BCTL_E2E_ALL_FAULTS=1            every fault for every container
//	BCTL_E2E_STORE_AWAY=60s          how long the store is away
package containers
