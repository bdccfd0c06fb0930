# bctl: `make help` lists the targets. Programs that targets need are built once, in a cache that outlives
# the clone: see e2e/tool.sh.

VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
DIR         ?=
FUZZTIME    ?= 10s
MINUTES     ?= 10
HISTORIES   ?= 1000
SEED        ?=
TESTTIMEOUT ?= 60m
PACKAGES    ?= ./...
TESTFLAGS   ?=
BENCH_PRESET   ?= million20
BENCH_STEPS    ?=
BENCH_SECTIONS ?=
BENCH_ROUNDS   ?= 3
BENCH_FULL     ?=
BENCH_FLAGS    ?=
SCALE_FLAGS  ?=

SERVERS := nats-server versitygw minio mc # nats-server as a program is for containers, Debian and benchmarks
TOOLS   := golangci-lint buf protoc-gen-go govulncheck goreleaser cyclonedx-gomod

.DEFAULT_GOAL := help
.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: PACKAGES=$(PACKAGES) TESTFLAGS= TESTTIMEOUT=$(TESTTIMEOUT) FUZZTIME=$(FUZZTIME) MINUTES=$(MINUTES) HISTORIES=$(HISTORIES) SEED= BENCH_PRESET=$(BENCH_PRESET) BENCH_STEPS= BENCH_SECTIONS= BENCH_ROUNDS=$(BENCH_ROUNDS) BENCH_FULL= BENCH_FLAGS= DIR="

## Product

.PHONY: build demo
build: ## build bin/bctl, static [VERSION=what bctl version prints]
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X github.com/bctl/bctl/internal/process.linked=$(VERSION)' -o bin/bctl ./services/bctl

demo: build ## back something up and restore it, on this machine [DIR=what to back up]
	PATH="$(CURDIR)/bin:$$PATH" e2e/demo.sh $(DIR)

## Packages

BUILD ?= git-$(shell git describe --tags --always --dirty 2>/dev/null)

.PHONY: package
package: ## all that a release has, in dist: packages, tarballs, bills of materials; publishes nothing [BUILD=what versions end with]
	PATH="$$(dirname "$$(e2e/tool.sh cyclonedx-gomod)"):$$PATH" BCTL_BUILD=$(BUILD) "$$(e2e/tool.sh goreleaser)" release --snapshot --clean

## Containers

IMAGE   ?= bctl:latest
COMPOSE ?= docker compose

.PHONY: images compose-config compose-up compose-down
images: build ## the container image IMAGE, from bin/bctl
	deploy/rootfs.sh bin/bctl dist/image
	docker build --target prebuilt --tag $(IMAGE) --file deploy/Dockerfile dist/image

compose-config: ## check deploy/compose.yaml [COMPOSE="$$(e2e/tool.sh compose)" where docker has no compose]
	$(COMPOSE) --file deploy/compose.yaml config --quiet

compose-up: images ## a whole fleet on this machine [BCTL_DATA=the tree that it backs up]
	BCTL_IMAGE=$(IMAGE) $(COMPOSE) --file deploy/compose.yaml up --detach --wait

compose-down: ## stop that fleet; its volumes stay
	BCTL_IMAGE=$(IMAGE) $(COMPOSE) --file deploy/compose.yaml down

## Tests: CONTRIBUTING.md says when to run which

# Everything has the race detector, the programs that tests start included, so that it is compiled once; vet is the linter's.
# SQLite, which is C in Go's clothes, and compression are not instrumented: they would take most of the time. Do not add
# packages here that use generic types of the standard library (sync.Map): the linker may choose their copy, and then races
# are reported that there are not.
# A program with the race detector sleeps for a second before it exits, unless it is told not to: tests run hundreds.
# Many tests wait for leases and processes: two packages of each module at a time leave no core idle.
RACED        := GORACE="atexit_sleep_ms=0 $$GORACE" GOFLAGS="$$(go env GOFLAGS) -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=github.com/klauspost/compress/...=-race=false"
WITHPOSTGRES := e2e/need-postgres.sh && export $(RACED) && go run -race ./internal/testenv/withpostgres
GOTEST       := e2e/gotest.sh -race -vet=off -p 2 -timeout $(TESTTIMEOUT) $(TESTFLAGS)
TESTED       := ./internal/... ./migrations/... ./services/... ./e2e ./e2e/commands ./e2e/fleet/...
S3TESTED     := ./internal/store/s3store ./internal/mirror ./internal/doctor ./internal/installation ./e2e ./e2e/scale ./internal/testenv
ALLTESTED    := $(TESTED) ./e2e/bench/... ./e2e/scale/... ./e2e/slowfs/...
# In test-all, these are tested without the race detector, with which they take several times as long and share little
# memory: make test has it everywhere. test-fleet-race has it for the programs of a fleet.
PLAIN        := ./internal/index/... ./internal/prune ./internal/installation ./internal/seal ./internal/drill ./internal/rewrap ./internal/doctor ./services/bctl/embedded ./services/bctl/cli ./e2e ./e2e/commands

.PHONY: test test-short test-s3 test-upgrade test-long test-exhaustive test-manifests test-independent test-containers test-debian test-all test-fleet-race soak histories fuzz bench bench-scale
test: ## what every change must pass, within minutes: needs Go, a C compiler and Postgres
	$(WITHPOSTGRES) $(GOTEST) -- $(if $(filter ./...,$(PACKAGES)),$(TESTED),$(PACKAGES))

test-short: ## the tests that need no server
	e2e/gotest.sh -short -timeout 5m $(TESTFLAGS) -- $(if $(filter ./...,$(PACKAGES)),$(TESTED),$(PACKAGES))

test-s3: s3-servers ## S3 stores: versitygw and minio, which are built first, and faults between them and a fleet
	export BCTL_TEST_TARGETS=s3; $(WITHPOSTGRES) $(GOTEST) -- $(if $(filter ./...,$(PACKAGES)),$(S3TESTED),$(PACKAGES))

test-upgrade: ## the previous release beside this one
	export BCTL_TEST_TARGETS=upgrade; $(WITHPOSTGRES) $(GOTEST) -v -run Upgrade -- ./e2e

test-long: ## what takes long: random changes and faults repeated more often, large trees
	export BCTL_TEST_TARGETS=long,often; $(WITHPOSTGRES) $(GOTEST) -- $(if $(filter ./...,$(PACKAGES)),$(ALLTESTED),$(PACKAGES))

test-exhaustive: ## every cell of the matrix of faults, every history of pages, every order and interleaving of pruning, more of the models: many hours
	BCTL_TEST_TARGETS=exhaustive $(WITHPOSTGRES) $(GOTEST) -timeout 6h -run '^(TestIndex|TestMatrixOfFaults|TestModel|TestHistories|TestInterleavings|TestOrders|TestLocksCostLittle)$$' -- ./internal/index/... ./internal/prune ./services/bctl/embedded

test-manifests: ## deploy/kubernetes, and Prometheus's rules, which need promtool
	go test -C e2e/manifests -timeout $(TESTTIMEOUT) $(TESTFLAGS) ./...
	BCTL_TEST_TARGETS=manifests e2e/gotest.sh -timeout $(TESTTIMEOUT) $(TESTFLAGS) -run 'Alert|Dashboard' -- ./services/bctl/serve ./e2e

test-independent: ## stores, read by a program in Python that is written from docs/formats; skipped without e2e/independent/requirements.txt
	go test -C e2e -tags independent -count 1 -timeout $(TESTTIMEOUT) $(TESTFLAGS) ./independent

test-debian: ## docs/operations.md, followed on a Debian with systemd; fails without Docker [TESTFLAGS=-v]
	BCTL_REQUIRE_DOCKER=1 e2e/gotest.sh -count 1 -timeout $(TESTTIMEOUT) $(TESTFLAGS) -- ./e2e/debian

test-containers: ## the fleet of deploy/compose.yaml under faults; fails without Docker [TESTFLAGS=-v]
	@e2e/need-postgres.sh
	BCTL_REQUIRE_DOCKER=1 e2e/gotest.sh -race -count 1 -timeout $(TESTTIMEOUT) $(TESTFLAGS) -- ./e2e/containers

test-all: s3-servers ## test, test-s3, test-upgrade and test-long in one run; random tests as often as in test
	export BCTL_TEST_TARGETS=s3,upgrade,long; $(WITHPOSTGRES) e2e/gotest.sh -race -vet=off -p 1 -timeout $(TESTTIMEOUT) $(TESTFLAGS) -- $(ALLTESTED) --plain $(PLAIN)

test-fleet-race: ## fleets, and random lives of them, with the race detector
	$(WITHPOSTGRES) $(GOTEST) -run '^(TestFleet|TestKillAnyProcess|TestTwoFleets|TestSoak|TestRandomHistories|TestRandomChanges)' -- ./e2e

soak: s3-servers ## random changes and faults of a fleet [MINUTES=10 SEED=n repeats them]
	export BCTL_TEST_TARGETS=s3,long E2E_SOAK_MINUTES=$(MINUTES) E2E_SEED=$(SEED); $(WITHPOSTGRES) go test -C e2e -race -timeout 0 -count 1 -v -run '^TestSoak$$' $(TESTFLAGS) .

histories: ## random histories on one machine, with kills, pauses and moved clocks [HISTORIES=1000 SEED=n makes the same decisions]
	E2E_HISTORIES=$(HISTORIES) E2E_SEED=$(SEED) go test -C e2e -timeout 0 -count 1 -v -run '^TestRandomHistories$$' $(TESTFLAGS) .

fuzz: ## every fuzz target for FUZZTIME
	e2e/fuzz.sh $(FUZZTIME) $(PACKAGES)

# BENCH_FULL=1 is for a night: sizes up to millions of files. BENCH_FLAGS=-assert fails where a criterion does not hold.
bench: build servers ## bctl beside its peers, and all else that docs/bench has [BENCH_PRESET=million,big BENCH_STEPS=first BENCH_SECTIONS=trees BENCH_FLAGS=-assert]
	PATH="$(CURDIR)/bin:$$PATH" go run -C e2e ./bench -preset $(BENCH_PRESET) -steps "$(BENCH_STEPS)" -sections "$(BENCH_SECTIONS)" \
		-rounds $(BENCH_ROUNDS) $(if $(BENCH_FULL),-full) -results $(CURDIR)/docs/bench -tuning $(CURDIR)/docs/tuning.md $(BENCH_FLAGS)
	$(if $(BENCH_SECTIONS),,$(MAKE) bench-scale SCALE_FLAGS="-results $(CURDIR)/docs/bench $(SCALE_FLAGS)")

bench-scale: servers ## how walkers, and the index of a large fleet, scale [SCALE_FLAGS=-assert]
	BCTL_TEST_TARGETS=s3,long go run ./internal/testenv/withpostgres go test -C e2e ./scale -run '^$$' -bench . -benchtime 1x -timeout $(TESTTIMEOUT) -v -args $(SCALE_FLAGS)

## Checks

.PHONY: lint proto-lint proto-breaking generate generate-check tidy-check vulncheck
lint: proto-lint ## golangci-lint and buf lint
	"$$(e2e/tool.sh golangci-lint)" run $(PACKAGES)
ifeq ($(PACKAGES),./...)
	cd e2e && "$$(./tool.sh golangci-lint)" run --config ../.golangci.yml ./...
	cd e2e/manifests && "$$(../tool.sh golangci-lint)" run --config ../../.golangci.yml ./...
	cd internal/index/ent/migratediff && "$$(../../../../e2e/tool.sh golangci-lint)" run --config ../../../../.golangci.yml ./...
endif

proto-lint:
	cd proto && "$$(../e2e/tool.sh buf)" lint

proto-breaking: ## compare the messages with those of the previous release, or of the commit AGAINST
	@commit="$(AGAINST)"; [ -n "$$commit" ] || commit=$$(e2e/previous.sh --commit) || exit $$?; \
	against=$$(mktemp -d) && trap 'rm -rf "$$against"' EXIT && \
	git archive "$$commit" proto | tar -x -C "$$against" && \
	cd proto && "$$(../e2e/tool.sh buf)" breaking --against "$$against/proto"

generate: ## protobuf and ent code, and migrations, from their sources
	cd proto && PATH="$$(dirname "$$(../e2e/tool.sh protoc-gen-go)"):$$PATH" "$$(../e2e/tool.sh buf)" generate
	go generate ./internal/index/...

generate-check: ## fail when generated code is out of date
	e2e/generate-check.sh

tidy-check: ## fail when a go.mod is not tidy
	e2e/tidy-check.sh

vulncheck: ## known vulnerabilities in what bctl calls (asks a database on the network)
	"$$(e2e/tool.sh govulncheck)" $(PACKAGES)

## Programs

.PHONY: servers s3-servers tools clean
servers: ## the pinned servers that tests, containers and benchmarks start
	@e2e/tool.sh $(SERVERS) >/dev/null || { echo "a server cannot be built: see above, or name yours in BCTL_NATS_SERVER, BCTL_VERSITYGW, BCTL_MINIO, BCTL_MC" >&2; exit 1; }

s3-servers:
	@$(MAKE) --no-print-directory servers SERVERS="versitygw minio mc"

tools: ## the pinned development tools
	@e2e/tool.sh $(TOOLS)

clean: ## remove what make built here (not the cache of programs)
	rm -rf bin dist
