# `make run` starts a server, `make test` runs every check; `make help` lists all targets.
# Each target sets up what it needs; Python, a shell and make are the only prerequisites.
PYTHON ?= python3
BIN = .venv/bin
PACKAGING = setup.cfg setup.py pyproject.toml
KERNELS = $(wildcard fyrehose/kernels/native/*.pyx fyrehose/kernels/native/*.pxd)
BUILT = fyrehose/kernels/native/*.so
# Tests that are run again with the pure-Python kernels: the protocols that use one. tests/kernels runs each kernel in both.
PURE_TESTS = $(addprefix tests/protocols/,backbone eventbus figg lumberjack relink)
# Number of processes that compute at once: the cores that the checks may take.
JOBS ?= 2
# Number of tests of `make unit` that run at once: many of them wait for processes and timeouts, and compute little.
AT_ONCE ?= $(shell expr $(JOBS) + 4)
# How much the long targets do: the sizes beside them are those of SCALE=1, and each is multiplied by it.  A release needs
# `make torture SCALE=10`, `make fuzz SCALE=500` and `make soak SCALE=144` (a day); SCALE=0.1 tries whether everything works.
SCALE ?= 1
scaled = $(shell awk 'BEGIN { size = int($(1) * $(SCALE)); print size < 1 ? 1 : size }')
# What `make check` compares with.
BASE ?= main
# Versions of Python for which a release is built and tried (empty: all that the machine has).
PYTHONS ?=
# The oldest version of each package that setup.cfg allows is tested with the oldest Python of setup.cfg.
OLDEST = build/oldest
# Tests that `make oldest` runs.
OLDEST_TESTS ?= tests
# Benchmark cases (patterns of `python -m benchmarks --list`; empty: all of them), and rounds of each.
BENCH ?=
ROUNDS ?= 5
# Cases of the quick run, and the results of an earlier one (empty: none).
QUICK = figg/publish figg/live/1 figg/catch-up figg/publish/window-1 figg/latency/5k figg/latency/20k \
	lumberjack/level-* relink/publish relink/live/1 backbone/live/1 eventbus/live/1 journal/append/64K start/empty \
	growth/streams/1000 growth/streams/10000 growth/subscribers/100
BEFORE ?=

.PHONY: run packages cluster test alone check twisted oldest pythons lint types unit pure trial news lock coverage fuzz torture soak bench bench-quick docs fragments dist clean help
.DEFAULT_GOAL := help

help:
	@echo "make run       serve every protocol on loopback, with the journal in ./data"
	@echo "make cluster   run three servers and three NATS servers on loopback, in ./build/cluster; see docs/cluster.md"
	@echo "make check     check style, types, pages, and the unit tests of what changed since main, in two minutes; BASE=REF for another"
	@echo "make test      check style, types, behaviour and documentation, like CI"
	@echo "make twisted   test what is private of Twisted, with the oldest version that is allowed and the newest one"
	@echo "make oldest    run the unit tests with the oldest version of each package that setup.cfg allows"
	@echo "make pythons   run make test in a fresh clone with each Python of setup.cfg that this machine has; PYTHONS=3.12 for one"
	@echo "make coverage  run the tests and list the lines that they never reached"
	@echo "make fuzz      feed random bytes to every decoder, 20,000 times each; SCALE=50 for a million"
	@echo "make torture   kill the server, flip bits, fail its disk, cut its power, abuse it; SCALE=10 for as much as a release needs"
	@echo "make soak      run mixed load and invalid connections for ten minutes; SCALE=144 for a day"
	@echo "make bench     measure speed beside Redis and NATS, which it installs; BENCH='figg*' ROUNDS=9"
	@echo "make bench-quick  measure Fyrehose alone in 5 minutes, into bench-quick.json; BEFORE=old.json to compare"
	@echo "make docs      build the documentation as HTML in build/docs"
	@echo "make news      write NEWS.md from the news fragments"
	@echo "make lock      write the versions and hashes that the container image installs, in deploy/docker"
	@echo "make dist      build the release in dist/, and try it in clean environments of each Python; PYTHONS=3.12 for one"
	@echo "make clean     remove everything that the other targets made, except ./data"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fyrehose needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

# Kernels that `pip install` has compiled since their sources changed are used, not compiled again.  Otherwise remove old
# builds first: a kernel that no longer compiles must not be used in its previous build.
INSTALLED = .venv/lib/python3*/site-packages
.venv/run.stamp: $(BIN)/python $(PACKAGING) $(KERNELS)
	@if [ -e $(BIN)/fyrehose ] && [ -z "$$(find $(PACKAGING) $(KERNELS) -newer $(BIN)/fyrehose)" ] \
		&& ls $(BUILT) $(addprefix $(INSTALLED)/,$(BUILT)) 2> /dev/null | grep -q .; then \
		for folder in $(sort $(dir $(BUILT))); do cp $(INSTALLED)/$$folder*.so $$folder 2> /dev/null; done; \
		echo "setting up .venv with the native kernels that are compiled already; this takes some seconds, once"; \
		FYREHOSE_PURE=1 $(MAKE) --no-print-directory packages; \
	else \
		rm -f $(BUILT); \
		echo "setting up .venv: packages, and native kernels if there is a C compiler; this takes a minute or two, once"; \
		$(MAKE) --no-print-directory packages; \
	fi
	@$(BIN)/python -m fyrehose.kernels
	@touch $@

# The event bus encrypts with PyNaCl, and the page needs prometheus-client; lumberjack is faster with isal. If one of them cannot be
# installed, serve everything else.
packages:
	@for extras in '[admin,eventbus,lumberjack]' '[admin,eventbus]' '[admin]' ''; do \
		$(BIN)/python -m pip install --quiet --editable ".$$extras" && exit 0; \
	done; exit 1

.venv/test.stamp: $(BIN)/python $(PACKAGING)
	@rm -f $(BUILT)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

# Programs of others that the live tests use: a browser, proxies, Prometheus, shells and Redis.
.venv/programs.stamp: .venv/test.stamp
	@sh tests/live/programs.sh
	@touch $@

# The extra `test` includes Cython, so the kernels can be built without network access.
.venv/native.stamp: .venv/test.stamp $(KERNELS)
	@rm -f $(BUILT)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@$(BIN)/python -m fyrehose.kernels
	@touch $@ .venv/run.stamp

run: .venv/run.stamp
	$(BIN)/fyrehose serve --data-dir data

.venv/cluster.stamp: .venv/run.stamp
	@FYREHOSE_PURE=1 $(BIN)/python -m pip install --quiet --editable '.[cluster-demo]'
	@touch $@

cluster: .venv/cluster.stamp
	$(BIN)/python -m benchmarks.local_cluster build/cluster

test: alone pure unit

# What one process does at a time, as many of them at once as there are cores; each prints when it has ended.
alone: .venv/native.stamp
	@$(MAKE) --no-print-directory --jobs=$(JOBS) $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) \
		lint types trial docs fragments

# The tests are those of tools/changed_tests.py, without live and slow ones: what a commit needs, and `make test` a merge.
check: lint types .venv/native.stamp
	@tests="$$($(BIN)/python tools/changed_tests.py $(BASE))" && \
		$(BIN)/python -m pytest -q -n $(JOBS) --dist loadgroup -m 'not live and not slow' $$tests

# The tests of everything private of Twisted, with the oldest version that setup.cfg allows and with the newest one.
TWISTED = $(shell sed -n 's/^ *Twisted\[tls\] >= //p' setup.cfg)
twisted: .venv/test.stamp
	for version in "~=$(TWISTED).0" ">=$(TWISTED)"; do \
		rm -rf build/twisted && \
		$(BIN)/python -m pip install --quiet --no-deps --target build/twisted "Twisted$$version" && \
		PYTHONPATH=build/twisted $(BIN)/python -m pytest tests/net/test_twisted_private.py || exit 1; \
	done

# In an environment of its own; a bound in setup.cfg that is too low fails here.
oldest:
	$(PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip packaging
	$(OLDEST)/bin/python tools/oldest.py > $(OLDEST)/constraints.txt
	FYREHOSE_PURE=1 $(OLDEST)/bin/python -m pip install --quiet --constraint $(OLDEST)/constraints.txt --editable '.[test]'
	FYREHOSE_PURE=1 $(OLDEST)/bin/python -m pytest -n $(AT_ONCE) --dist loadgroup -m 'not live' $(OLDEST_TESTS)

# In clones of what is committed, because the environment and the kernels of a checkout belong to one Python.
pythons:
	@set -e; for each in $$($(PYTHON) tools/dist.py --pythons $(PYTHONS)); do \
		clone=build/test-$$(basename $$each); rm -rf $$clone; git clone --quiet . $$clone; \
		$(MAKE) -C $$clone test PYTHON=$$each; \
	done

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test.stamp
	$(BIN)/mypy

unit: .venv/native.stamp .venv/programs.stamp
	$(BIN)/python -m pytest -n $(AT_ONCE) --dist loadgroup

pure: .venv/native.stamp
	FYREHOSE_PURE=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m 'not slow' $(PURE_TESTS)

trial: .venv/native.stamp
	$(BIN)/trial tests/by_trial.py

fragments: .venv/test.stamp
	@$(BIN)/towncrier build --draft --version next > /dev/null
	@echo "news fragments: OK"

# It may be repeated before a release; the fragments stay.
news: .venv/test.stamp
	@$(BIN)/python tools/news.py $$($(BIN)/python -c 'import fyrehose; print(fyrehose.__version__)')

# Needs the tools of the release only: dist.py compiles the kernels from the sdist.
.venv/release.stamp: $(BIN)/python $(PACKAGING)
	FYREHOSE_PURE=1 $(BIN)/python -m pip install --quiet --editable '.[release]'
	@touch $@

# Builds from the files that git knows, and installs every result in an empty environment of each Python on this machine.
dist: .venv/release.stamp
	$(BIN)/python tools/dist.py $(PYTHONS)

# The packages of the container image, with the hashes of every file that may be installed. The files name no index: pip
# takes the one that it is configured for. Run this to take newer versions, try the image, and commit both files.
LOCK = CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe \
	--strip-extras --no-annotate --no-emit-options --no-emit-find-links
lock: .venv/release.stamp
	$(LOCK) --extra admin --extra eventbus --extra lumberjack --output-file deploy/docker/requirements.txt pyproject.toml
	$(LOCK) --only-build-deps --build-deps-for wheel --output-file deploy/docker/build-requirements.txt pyproject.toml

# A warning is an error: a broken link, or a page that no other page lists.
docs: .venv/test.stamp
	$(BIN)/sphinx-build --quiet --nitpicky --fail-on-warning --keep-going docs build/docs
	@echo "documentation: build/docs/index.html"

coverage: .venv/native.stamp
	$(BIN)/coverage run -m pytest -m 'not live'
	$(BIN)/coverage report

fuzz: .venv/native.stamp
	$(BIN)/python tests/verification/fuzz/fuzz.py --executions $(call scaled,20000)
	$(BIN)/python tests/verification/torture/soak.py --attacks $(call scaled,2000)

# Begins with the tests that `make test` runs in a smaller size, or not with the pure-Python kernels.
torture: .venv/native.stamp
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --full -m ladder
	FYREHOSE_PURE=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --full -m 'slow or ladder' $(PURE_TESTS)
	$(BIN)/python tests/verification/torture/kill9.py --count $(call scaled,100)
	$(BIN)/python tests/verification/torture/kill9.py --count $(call scaled,100) --durability interval:20
	$(BIN)/python tests/verification/torture/standby_kill.py --kills $(call scaled,30)
	$(BIN)/python tests/verification/torture/syslog_kill.py --messages $(call scaled,1000000) --kills 20
	$(BIN)/python tests/verification/torture/forward_kill.py --kills $(call scaled,100)
	$(BIN)/python tests/verification/torture/bits.py --kind checks --count 0
	$(BIN)/python tests/verification/torture/bits.py --count $(call scaled,2000)
	$(BIN)/python tests/verification/torture/faults.py --count $(call scaled,5)
	$(BIN)/python tests/verification/torture/power.py --count $(call scaled,1000)
	$(BIN)/python tests/verification/torture/power.py --count $(call scaled,500) --options data=writeback
	$(BIN)/python tests/verification/torture/power.py --count $(call scaled,500) --durability interval:2
	$(BIN)/python tests/verification/torture/power.py --count $(call scaled,500) --durability never
	$(BIN)/python tests/verification/torture/power.py --count $(call scaled,500) --fs xfs
	$(BIN)/python tests/verification/torture/replication.py --count $(call scaled,100000)
	$(BIN)/python tests/verification/torture/groups.py --count $(call scaled,100000)
	$(BIN)/python tests/verification/torture/weather.py --rounds $(call scaled,40)
	$(BIN)/python tests/verification/torture/reorder.py --count $(call scaled,5)
	$(BIN)/python tests/verification/torture/workers.py --minutes $(call scaled,2) --records $(call scaled,20000)
	$(BIN)/python tests/verification/torture/workers.py --minutes $(call scaled,2) --records $(call scaled,10000) --kills
	$(BIN)/python tests/verification/torture/workers.py --minutes 20 --records 100000 --kills 2.5 --points $(call scaled,100)
	$(BIN)/python tests/verification/torture/workers_takeovers.py --records 100000 --kills 2.5 --points $(call scaled,100) \
		--only take-over
	$(BIN)/python tests/verification/torture/workers_fair.py --subscriptions $(call scaled,1000)
	$(BIN)/python tests/verification/torture/sweep.py --count $(call scaled,200)
	$(BIN)/python tests/verification/torture/lumberjack_writers.py --level 0
	$(BIN)/python tests/verification/torture/lumberjack_writers.py --level 3
	$(BIN)/python tests/verification/torture/herd.py --clients 200 --seconds $(call scaled,15)
	$(BIN)/python tests/verification/simulation/run.py --bugs
	$(BIN)/python tests/verification/simulation/run.py --count $(call scaled,20000) --jobs $(JOBS)
	$(BIN)/python tests/verification/simulation/run.py --count $(call scaled,20) --herd 200 --jobs $(JOBS)
	$(BIN)/python tests/verification/simulation/run.py --bugs --servers 3
	$(BIN)/python tests/verification/simulation/run.py --count $(call scaled,2000) --servers 2 --jobs $(JOBS)
	$(BIN)/python tests/verification/simulation/run.py --count $(call scaled,2000) --servers 3 --jobs $(JOBS)
	$(BIN)/python tests/verification/torture/generated.py --count $(call scaled,1000) --jobs $(JOBS)
	$(BIN)/python tests/verification/torture/relink_schedules.py --count $(call scaled,100000)
	$(BIN)/python tests/verification/torture/relink_schedules.py --count $(call scaled,100000) --losses
	$(BIN)/python tests/verification/torture/relink_transfer.py --messages $(call scaled,100000)
	$(BIN)/python tests/verification/torture/relink_transfer.py --messages $(call scaled,100000) --kills $(call scaled,50)
	$(BIN)/python tests/verification/torture/spark_kill.py --count $(call scaled,30)
	$(BIN)/python tests/verification/torture/spark_kill.py --count $(call scaled,30) --engine local --busy 3
	$(BIN)/python tests/verification/torture/spark_week.py --minutes $(call scaled,10080)
	$(BIN)/python tests/verification/torture/tables_kill.py --count $(call scaled,50)
	$(BIN)/python tests/verification/torture/sink_kill.py --count $(call scaled,20)
	$(BIN)/python tests/verification/torture/spark_cluster.py --records $(call scaled,200000)
	$(BIN)/python tests/verification/torture/spark_tour.py --events $(call scaled,1000000)

# Run it for an hour or more to see whether memory grows.
soak: .venv/test.stamp
	$(BIN)/python tests/verification/torture/soak.py --minutes $(call scaled,10)

.venv/bench.stamp: .venv/run.stamp
	$(BIN)/python -m pip install --quiet --editable '.[bench,cluster-demo,eventbus,lumberjack]' pyzmq
	@touch $@

# `set -f` keeps the shell from expanding the patterns: they match names of cases, not of files.
bench: .venv/bench.stamp
	set -f; $(BIN)/python -m benchmarks --install-peers --touch-memory --rounds $(ROUNDS) --json bench.json --plot bench.svg $(BENCH)
	$(BIN)/python -m benchmarks.cluster --rounds $(ROUNDS) --jetstream 50000

# Small enough for each night; BEFORE is the JSON of an earlier run on the same machine.
bench-quick: .venv/bench.stamp
	set -f; $(BIN)/python -m benchmarks --alone --touch-memory --rounds $(ROUNDS) --scale 0.25 --json bench-quick.json $(QUICK)
	$(if $(BEFORE),$(BIN)/python -m benchmarks --compare $(BEFORE) bench-quick.json)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis _trial_temp* .coverage*
	rm -f fyrehose/kernels/native/*.c $(BUILT)
