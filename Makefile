# Everything starts from here: `make run` serves, `make test` proves.
# Each target sets up what it needs; nothing but Python, a shell and make has to be there.
PYTHON ?= python3
BIN = .venv/bin
SETUP = setup.cfg setup.py pyproject.toml $(wildcard fyrehose/kernels/native/*.pyx)

.PHONY: run test lint types unit trial news clean help
.DEFAULT_GOAL := help

help:
	@echo "make run    serve on loopback, journal in ./data"
	@echo "make test   set up, then check style, types and behaviour"
	@echo "make clean  remove what the other targets made (not ./data)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fyrehose needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

.venv/run.stamp: $(BIN)/python $(SETUP)
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/test.stamp: $(BIN)/python $(SETUP)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@ .venv/run.stamp

run: .venv/run.stamp
	$(BIN)/twistd -n fyrehose --data-dir data

test: lint types unit trial news

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test.stamp
	$(BIN)/mypy

unit: .venv/test.stamp
	$(BIN)/python -m pytest

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis _trial_temp*
	rm -f fyrehose/kernels/native/*.c fyrehose/kernels/native/*.so
