# Everything starts from here: `make run` serves, `make test` proves.
# Each target sets up what it needs; nothing but Python, a shell and make has to be there.
PYTHON ?= python3
BIN = .venv/bin
PACKAGING = setup.cfg setup.py pyproject.toml
KERNELS = $(wildcard fyrehose/kernels/native/*.pyx fyrehose/kernels/native/*.pxd)
# What may behave differently with the kernels in Python.
PURE_TESTS = tests/kernels tests/protocols
# Tests that run side by side: most of them wait more than they compute.
JOBS ?= 2
# Executions of each fuzzed decoder; connections to a whole server that make no sense.
FUZZ_RUNS ?= 20000
STRANGERS ?= 2000
# Kills of the server; flipped bits and cuts of each shape (0: all); failed syncs, and power cuts.
KILLS ?= 100
FLIPS ?= 2000
FAULTS ?= 5
# Power cuts of the journal alone; histories of which every state is recovered; faults of a server's calls (0: all of them).
CUTS ?= 500
HISTORIES ?= 5
SWEEP ?= 200
# Connections of the crowd, and how long each kind of abuse goes on, in seconds; minutes of the soak.
CROWD ?= 1000
ABUSE ?= 10
# Clients of each protocol that come back together after a restart, and how long each attack of a hostile host lasts.
HERD ?= 200
HOSTILE ?= 15
MINUTES ?= 10
# Random schedules of two Relink sessions; messages of its transfers, which are cut 500 times, and kills in one of them.
SCHEDULES ?= 100000
MESSAGES ?= 100000
TRANSFER_KILLS ?= 50
# Simulations of servers, clients and bad networks, of each kind.
SIMULATIONS ?= 20000
# Simulations of herds, of HERD clients each.
HERDS ?= 20
# Generated bugs that the tests have to notice (0: all that can be made).
MUTANTS ?= 1000
# Kills of an archive; records that a cluster of Spark's reads, and events of its tour.
ARCHIVE_KILLS ?= 30
RECORDS ?= 200000
EVENTS ?= 1000000
# What is measured (patterns of `python -m benchmarks --list`; empty: all of it), and how often.
BENCH ?=
ROUNDS ?= 5

.PHONY: run test lint types unit pure trial news coverage fuzz torture soak bench docs clean help
.DEFAULT_GOAL := help

help:
	@echo "make run       serve every protocol on loopback, the journal in ./data"
	@echo "make test      set up, then check style, types and behaviour: what CI does"
	@echo "make coverage  run the tests and say what they never reached"
	@echo "make fuzz      random bytes for every decoder: FUZZ_RUNS=1000000 for a million each"
	@echo "make torture   kill the server, flip bits, fail its disk, cut its power, abuse it: KILLS=1000 FLIPS=0 (all) CUTS=10000 MUTANTS=0 (all)"
	@echo "make soak      mixed load and strangers: MINUTES=1440 for a day"
	@echo "make bench     how fast it is, beside Redis and NATS, which it installs: BENCH='figg*' ROUNDS=9"
	@echo "make docs      these pages as HTML, in build/docs"
	@echo "make clean     remove what the other targets made (not ./data)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fyrehose needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

# A kernel that does not compile any more must not be served by its last build.
.venv/run.stamp: $(BIN)/python $(PACKAGING) $(KERNELS)
	@rm -f fyrehose/kernels/native/*.so
	@# The event bus needs pyzmq, and the page prometheus-client; where they are not to be had, everything else is served.
	@echo "setting up .venv: packages, and the native kernels where there is a C compiler; a minute or two, once"
	@$(BIN)/python -m pip install --quiet --editable '.[admin,eventbus]' || $(BIN)/python -m pip install --quiet --editable '.[admin]' || $(BIN)/python -m pip install --quiet --editable .
	@$(BIN)/python -m fyrehose.kernels
	@touch $@

.venv/test.stamp: $(BIN)/python $(PACKAGING)
	@rm -f fyrehose/kernels/native/*.so
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

# The page is looked at in a real browser.
.venv/browser.stamp: .venv/test.stamp
	@sh tests/live/browser.sh
	@touch $@

# With the test tools the kernels are built without the network.
.venv/native.stamp: .venv/test.stamp $(KERNELS)
	@rm -f fyrehose/kernels/native/*.so
	$(BIN)/python setup.py --quiet build_ext --inplace
	@$(BIN)/python -m fyrehose.kernels
	@touch $@ .venv/run.stamp

run: .venv/run.stamp
	$(BIN)/twistd -n fyrehose --data-dir data

test: lint types unit pure trial docs news

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test.stamp
	$(BIN)/mypy

unit: .venv/native.stamp .venv/browser.stamp
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

pure: .venv/native.stamp
	FYREHOSE_PURE=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(PURE_TESTS)

trial: .venv/native.stamp
	$(BIN)/trial tests/by_trial.py

news: .venv/test.stamp
	@$(BIN)/towncrier build --draft --version next > /dev/null
	@echo "news fragments: fine"

# A warning is an error: a link that leads nowhere, a page that nobody finds.
docs: .venv/test.stamp
	$(BIN)/sphinx-build --quiet --nitpicky --fail-on-warning --keep-going docs build/docs
	@echo "documentation: build/docs/index.html"

coverage: .venv/native.stamp
	$(BIN)/coverage run -m pytest -m 'not live'
	$(BIN)/coverage report

# Each takes a number of executions, and ends with a status that says what became of them.
fuzz: .venv/native.stamp
	@set -e; for each in $(filter-out %/fuzz_listeners.py,$(wildcard tests/fuzz/fuzz_*.py)); do \
		echo "$$each"; $(BIN)/python "$$each" $(FUZZ_RUNS); done
	$(BIN)/python tests/fuzz/fuzz_listeners.py $(STRANGERS)

torture: .venv/test.stamp
	$(BIN)/python tests/torture/kill9.py --count $(KILLS)
	$(BIN)/python tests/torture/kill9.py --count $(KILLS) --durability interval:20
	$(BIN)/python tests/torture/bits.py --kind checks --count 0
	$(BIN)/python tests/torture/bits.py --count $(FLIPS)
	$(BIN)/python tests/torture/faults.py --count $(FAULTS)
	$(BIN)/python tests/torture/power.py --count $(CUTS)
	$(BIN)/python tests/torture/power.py --count $(CUTS) --options data=writeback
	$(BIN)/python tests/torture/power.py --count $(CUTS) --durability interval:2
	$(BIN)/python tests/torture/power.py --count $(CUTS) --durability never
	$(BIN)/python tests/torture/power.py --count $(CUTS) --fs xfs
	$(BIN)/python tests/torture/reorder.py --count $(HISTORIES)
	$(BIN)/python tests/torture/sweep.py --count $(SWEEP)
	$(BIN)/python tests/torture/abuse.py --connections $(CROWD) --seconds $(ABUSE)
	$(BIN)/python tests/torture/lumberjack_writers.py --level 0
	$(BIN)/python tests/torture/lumberjack_writers.py --level 3
	$(BIN)/python tests/torture/herd.py --clients $(HERD) --seconds $(HOSTILE)
	$(BIN)/python tests/simulation/run.py --bugs
	$(BIN)/python tests/simulation/run.py --count $(SIMULATIONS) --jobs $(JOBS)
	$(BIN)/python tests/simulation/run.py --count $(HERDS) --herd $(HERD) --jobs $(JOBS)
	$(BIN)/python tests/torture/mutants.py --jobs $(JOBS)
	$(BIN)/python tests/torture/generated.py --count $(MUTANTS) --jobs $(JOBS)
	$(BIN)/python tests/torture/relink_schedules.py --count $(SCHEDULES)
	$(BIN)/python tests/torture/relink_schedules.py --count $(SCHEDULES) --losses
	$(BIN)/python tests/torture/relink_transfer.py --messages $(MESSAGES)
	$(BIN)/python tests/torture/relink_transfer.py --messages $(MESSAGES) --kills $(TRANSFER_KILLS)
	$(BIN)/python tests/torture/spark_kill.py --count $(ARCHIVE_KILLS)
	$(BIN)/python tests/torture/spark_cluster.py --records $(RECORDS)
	$(BIN)/python tests/torture/spark_tour.py --events $(EVENTS)

# As long as you like: its memory has a slope worth knowing after an hour.
soak: .venv/test.stamp
	$(BIN)/python tests/torture/soak.py --minutes $(MINUTES)

.venv/bench.stamp: .venv/run.stamp
	$(BIN)/python -m pip install --quiet --editable '.[bench,eventbus,lumberjack]'
	@touch $@

# The patterns are for names of cases, not of files.
bench: .venv/bench.stamp
	set -f; $(BIN)/python -m benchmarks --install-peers --rounds $(ROUNDS) --json bench.json --plot bench.svg $(BENCH)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis _trial_temp* .coverage*
	rm -f fyrehose/kernels/native/*.c fyrehose/kernels/native/*.so
