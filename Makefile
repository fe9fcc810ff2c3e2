# Targets for people and for .ci/run. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# An older Go fetches the one that go.mod wants. Some distributions turn this off.
export GOTOOLCHAIN ?= auto
# What one command has compiled, the next takes from the build cache if both have the same flags. So all have those of
# make package. Only the race detector needs cgo.
export GOFLAGS := $(strip -trimpath $(filter-out -trimpath,$(GOFLAGS)))
export CGO_ENABLED ?= 0
# RING=giouring builds the io_uring layer on the giouring library instead of the engine's own; the
# library needs a linker flag on Go 1.23 and later.
RING ?=
GIOURING_FLAGS := -tags giouring -ldflags=-checklinkname=0
# Where git does not answer, because the checkout is somebody else's for example, go build would fail by asking it.
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
BUILD_FLAGS := $(if $(filter giouring,$(RING)),$(GIOURING_FLAGS),-ldflags=-X=main.commit=$(or $(COMMIT),unknown))
BUILD_FLAGS += $(if $(COMMIT),,-buildvcs=false)
# Packages whose tests run under the race detector: those with goroutines. What puretest checks has neither goroutines
# nor locks. What imports the embedded etcd (cmd/engine and a few below it) is left out: with the detector, etcd takes
# longer to compile than all of ours, and most of these tests run processes, which the detector does not watch.
# docs/contribute/releasing.md names them.
PURE = $(patsubst %/,\%/%,$(sort $(dir $(shell grep -rl puretest.Check --include=*_test.go internal replicate))))
RACED := ./engine/... ./client ./cmd/... ./internal/... ./segment/... ./clog/... ./netproto/... ./replicate/... ./tests/support/...
RACE_PACKAGES ?= $(filter-out $(PURE),$(shell $(GO) list -f '{{.ImportPath}} {{join .Deps " "}} ' $(RACED) | awk '!/internal\/cluster\/etcd / {print $$1}'))
# Modules of their own in this tree; go's ./... leaves them out.
MODULES := bench/peers client/otel packaging
# A time (30s) or a count of inputs (10000x) for each fuzz target.
FUZZ_TIME ?= 10000x
BENCH ?= .
BENCH_TIME ?= 1s
# CONFORMANCE is the path of a checkout of the black-box conformance suite (wire.sh, durability.sh).
CONFORMANCE ?=

.PHONY: help build program run cluster test race fuzz-smoke fuzz attacks crash sim sim-replicate sim-channel sim-models cluster-test native-failover doors gray-failures roll-test metrics-test golden rename power-cut mutants failpoints clients docs-test console-test vendor-web bench bench-observed bench-native bench-peers bench-relay bench-disk portable lint ci test-giouring conformance package package-test release

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "%-15s %s\n", $$1, $$2}'

build: program ## build bin/penstock and the tools into bin/ (RING=giouring: with that library)
	$(GO) build $(BUILD_FLAGS) -o bin/ ./tools/...

program: ## build only bin/penstock, in less time, and bin/engine, which is a link to it
	@mkdir -p bin
	$(GO) build $(BUILD_FLAGS) -o bin/penstock ./cmd/engine
	@ln -sf penstock bin/engine

run: program ## build and start a node with its data in ./data (FLAGS="--nsq-address ..." adds flags)
	exec bin/penstock serve --data-path data $(FLAGS)

cluster: program ## build and start three nodes with their data in ./cluster-data (NSQ of the first on 14150; ctrl-C stops them)
	exec bin/penstock dev-cluster --nodes 3 --data-path cluster-data --base-port $(or $(BASE_PORT),14150) --restart

# Tests wait more than they work: three packages at once, and six tests of each, keep two cores busy. Those that take
# longest begin first.
test: ## run all tests
	$(GO) test -timeout 20m -p 3 -parallel 6 ./internal/node ./internal/server ./tools/sim/world ./cmd/engine ./...
	for module in $(MODULES); do (cd $$module && $(GO) test ./...); done

# One package at a time: the detector makes work of what waits, and tests have deadlines. -short: fewer random trials.
race: ## run the tests of the packages with goroutines under the race detector, with locks that panic when they are taken out of order; tests of other processes are skipped
	CGO_ENABLED=1 $(GO) test -race -short -p 2 -parallel 4 -timeout 20m $(RACE_PACKAGES)

# All that imports uring. Nothing else differs in RING=giouring, so nothing else is compiled once more.
test-giouring: ## run the tests of what uses io_uring with the giouring library
	$(GO) test $(GIOURING_FLAGS) ./internal/uring ./internal/netio ./segment/aio/...

fuzz-smoke: ## run every fuzz target for FUZZ_TIME (10000x: that many inputs; or 30s)
	.ci/fuzz-smoke $(FUZZ_TIME)

# What a client without a token can send reaches these. FuzzFrames is all frames of the native protocol.
STRANGERS_FUZZ := FuzzParse|FuzzExt|FuzzInflater|FuzzCompressedCommands|FuzzLookupd|FuzzHeader|FuzzHello|FuzzStream|FuzzStranger|FuzzFrames|FuzzBodies|FuzzBatch|FuzzRecords|FuzzDecompress
fuzz: ## run the fuzz targets of every parser that a stranger reaches for FUZZ_TIME (10m) each, before a release
	.ci/fuzz-smoke $(if $(filter 10000x,$(FUZZ_TIME)),10m,$(FUZZ_TIME)) '$(STRANGERS_FUZZ)'

crash: ## cut the power at random operations of an engine SEEDS (1000) times; `make sim` does it to clusters
	TEST_CRASH_SEEDS=$(or $(SEEDS),1000) $(GO) test ./internal/node -run '^TestPowerCutA' -count=1 -timeout 0

sim: ## simulate clusters of whole nodes on new seeds for SIM_FOR (10m), or on SEEDS=from-to; WITH=producers: on those that draw them (FLAGS=-regressions: on all that failed once, first)
	$(GO) run ./tools/sim $(if $(SEEDS),-seeds $(SEEDS),-replay 20 -for $(or $(SIM_FOR),10m)) -with "$(WITH)" \
		-version "$(or $(COMMIT),unknown)" $(FLAGS)

sim-replicate: ## simulate a replicated partition, the machines alone, on SEEDS (0-100000)
	TEST_SIM_SEEDS=$(or $(SEEDS),0-100000) $(GO) test ./replicate -run TestSimulation -count=1 -timeout 0

sim-channel: ## simulate a channel's machine against a model of it, on SEEDS (0-100000)
	TEST_SIM_SEEDS=$(or $(SEEDS),0-100000) $(GO) test ./internal/node/delivery -run TestChannelRandom -count=1 -timeout 0

sim-models: ## the models of producers' names, dead letters, redrives and clusters' changes, on SEEDS (0-200000)
	TEST_SIM_SEEDS=$(or $(SEEDS),0-200000) $(GO) test ./internal/node/fold ./internal/node/delivery -count=1 -timeout 0 \
		-run 'TestTenuresModel|TestDeadLettersRandom|TestRedriveRandom|TestAsideRandom'
	TEST_SIM_SEEDS=$(or $(SEEDS),0-200000) $(GO) test ./internal/node/channel -run TestWithRoomRandom -count=1 -timeout 0
	TEST_SIM_SEEDS=$(or $(SEEDS),0-200000) $(GO) test ./internal/cluster -run 'TestModel$$' -count=1 -timeout 0

# The doors have a target of their own, for the time that they take.
cluster-test: ## break clusters of real processes under load and judge what clients saw (RUN=regexp of tests)
	$(GO) test -tags cluster -run '$(or $(RUN),.)' $(if $(RUN),,-skip '^TestDoor') -count=1 -timeout 60m -v ./tests/cluster/...

doors: ## let real nodes forget what they acknowledged, in each way that is known, with little data and with 200 MiB (SHORT=-short: only with little; RUN=regexp of tests)
	TEST_DOORS=full $(GO) test -tags cluster -run '$(or $(RUN),^TestDoor)' $(SHORT) -parallel 4 -count=1 -timeout 30m -v ./tests/cluster

gray-failures: ## let the disks of real nodes hang and fail, set their clocks and turn bits of their files, under load, ROUNDS (50; 20 of bits in each kind of file) times each (RUN=regexp of tests); needs root
	TEST_HANG_ROUNDS=$(or $(ROUNDS),50) TEST_ROUNDS=$(or $(ROUNDS),50) TEST_ROT_ROUNDS=$(or $(ROUNDS),20) \
		$(GO) test -tags cluster -run '$(or $(RUN),TestDiskHangs|TestDiskFails|TestClockSteps|TestRottenFiles)' -count=1 -timeout 0 -v ./tests/cluster

native-failover: ## kill leaders and penstock pub under native producers, ROUNDS (100) times
	TEST_ROUNDS=$(or $(ROUNDS),100) $(GO) test -run TestNativeFailover -count=1 -timeout 0 -v ./tests/cluster

failpoints: ## end, fail and delay real processes at places of the write path, ROUNDS (50) times on one node and on three
	TEST_FAILPOINT_ROUNDS=$(or $(ROUNDS),50) $(GO) test -tags cluster -run TestFailpoints -count=1 -timeout 0 -v ./tests/cluster

power-cut: ## cut the power of disks with a volatile cache under the engine CUTS (25) times, on ext4 and xfs; needs root
	TEST_POWER_CUTS=$(or $(CUTS),25) $(GO) test -tags powercut -count=1 -timeout 0 -v ./tests/powercut/...

mutants: ## plant known bugs, one at a time, in a copy of the tree: the tests must notice every one (RUN=regexp of names; SAMPLE=5: so many, which the commit chooses)
	$(GO) run ./tools/mutants $(if $(SAMPLE),-sample $(SAMPLE) -seed "$$(git log -1 --format=%ct)",-baseline) -run '$(RUN)'

roll-test: ## replace the last version before this one node after node under load, and back, and raise the feature level
	$(GO) test -tags roll -run TestRoll -count=1 -timeout 20m -v ./tests/cluster

# How long each attack lasts; empty: two seconds, beside others.
attacks: SECONDS ?= 20
attacks: ## take each resource of a node for SECONDS (20) as a stranger or a tenant would, while another tenant publishes (RUN=regexp of names)
	TEST_ATTACK_SECONDS=$(SECONDS) $(GO) test -tags attacks -run 'TestAttacks/$(or $(RUN),.)' -count=1 -timeout 40m -v ./tests/attacks

metrics-test: ## check the boards and alert rules in deploy with a real Prometheus that scrapes three nodes (RUN=, SKIP=regexp of tests); needs prometheus
	$(GO) test -tags prometheus $(if $(RUN),-run '$(RUN)') $(if $(SKIP),-skip '$(SKIP)') -count=1 -timeout 15m -v ./tests/prometheus

rename: ## give the module another path, everywhere in the tree (MODULE=example.org/team/penstock)
	go run ./tools/rename $(MODULE)

golden: ## write the golden data directories anew, each level by the last version that had it (LEVELS="1 2 3 4 5")
	tools/golden.sh

clients: ## run clients of others (nsqio's utilities, nsqadmin, nsqjs, pynsq) and the programs of docs/clients against a node and a cluster; needs npm and pip
	$(GO) test -tags clients -count=1 -timeout 20m ./tests/clients

docs-test: build ## run every command of README.md and docs/, and compare what it prints (RUN=regexp of paths); needs root
	TEST_DOCUMENTS='$(RUN)' $(GO) test -tags docs -count=1 -parallel 3 -timeout 20m -v ./tests/docs

console-test: ## open the console in chromium, against real nodes; screenshots go to tests/console/screenshots (RUN=regexp); needs npm
	$(GO) test -tags console -run '$(or $(RUN),.)' -count=1 -timeout 20m ./tests/console

vendor-web: ## fetch the console's libraries from npm again, by version and hash
	internal/server/console/vendor-web

bench: ## run the benchmarks (BENCH=regexp BENCH_TIME=1s)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCH_TIME) -benchmem ./bench/...

bench-observed: ## measure what scrapes, statsd and 1000 topics cost publishers; fails below 0.98
	$(GO) test -tags observed -count=1 -timeout 30m -v -run TestObserved ./bench

bench-native: ## measure the native protocol beside NSQ's, in turn on one node and on three (BENCH=regexp)
	$(GO) test -run '^$$' -bench '$(if $(filter .,$(BENCH)),Native,$(BENCH))' -benchtime 1x -count=1 -timeout 20m ./bench

# ROUNDS, SECONDS and MESSAGES make it shorter; PEERS and WORK choose; PEERS_FLAGS takes any flag of bench/peers (-help).
bench-peers: build ## measure Penstock beside other servers with their usual Go clients (PEERS= WORK= ROUNDS=5 SECONDS=4 MESSAGES=1000000)
	cd bench/peers && $(GO) run . -peers '$(or $(PEERS),*)' -work '$(or $(WORK),*)' -rounds $(or $(ROUNDS),5) \
		-seconds $(or $(SECONDS),4) -messages $(or $(MESSAGES),1000000) $(PEERS_FLAGS)

bench-relay: ## measure three nodes with round trips of 0.2 and 1 ms, in network namespaces (ROUNDS=5, LOADS=regexp, ENGINES=a,b); needs root
	TEST_ROUNDS=$(or $(ROUNDS),5) TEST_LOADS='$(LOADS)' TEST_ENGINES='$(ENGINES)' \
		$(GO) test -tags relay -count=1 -timeout 30m -v -run TestRoundTrips ./bench

# In a mount namespace of its own: what it mounts is gone when it ends, whichever way it does.
bench-disk: ## measure one node on disks of 100, 200 and 1000 MB/s and on the whole disk, and three nodes on disks of 100 MB/s (ROUNDS=3, SECONDS=4, LOADS=regexp, ENGINES=a,b); needs root
	TEST_ROUNDS='$(ROUNDS)' TEST_SECONDS='$(SECONDS)' TEST_LOADS='$(LOADS)' TEST_ENGINES='$(ENGINES)' \
		unshare --mount $(GO) test -tags disk -count=1 -timeout 2h -v -run TestDisks ./bench

# Packages that clients are built from, on the systems on which applications are written.
PORTABLE := ./batch ./netproto ./internal/server/native/wire ./client

portable: ## type-check the packages that clients are built from, for macOS and for Windows with 32 bits
	$(GO) run ./tools/portable darwin/arm64,windows/386 $(PORTABLE)
	$(GO) run ./tools/portable -dir client/otel windows/386 .

package: ## make deb, rpm, tar.gz, SBOM and sums for amd64 and arm64 into dist/ (VERSION=1.2.3; ARCH=amd64)
	cd packaging && $(GO) run . -version '$(VERSION)' $(if $(ARCH),-arch '$(ARCH)')

package-test: ## install, upgrade and purge the packages on a throw-away copy of this machine; needs root and systemd-container
	cd packaging && $(GO) test -tags packages -count=1 -timeout 15m -v .

release: ## check, test, package and tag this commit (VERSION=1.2.3); pushes nothing: see docs/contribute/releasing.md
	tools/release.sh '$(VERSION)'

lint: ## check formatting, go vet, staticcheck and, where its database is reachable, govulncheck
	.ci/lint

ci: ## everything that must be green before a merge
	.ci/run

conformance: build ## run the wire conformance suite against a fresh node (CONFORMANCE=path)
	.ci/conformance $(CONFORMANCE)
