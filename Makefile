# The same few verbs by hand and in CI. Everything runs in .venv, made on demand from python3 >= 3.11.
# Another interpreter: make PYTHON=python3.12 setup. Another folder: make VENV=/some/folder setup.

PYTHON ?= python3
VENV   ?= .venv
CASES  ?= 100000
MINUTES ?= 1
SEEDS  ?= 10000
BLOCKS ?= 2000
# Processes of `test`: tests wait more than they compute. It keeps compiled modules, which halves pytest's collection.
JOBS   ?= 4
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup constraints java check format api test test-all matrix sim chaos atheris fuzz bench demo proto clean

help:  ## show the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv and install Sluice with its tools

$(STAMP): pyproject.toml deploy/constraints.txt gateway/blocks/_many_items.c gateway/blocks/_lanes.h \
		datastream/file/_many_entries.c datastream/server/_many_clients.c
	@PYTHON="$(PYTHON)" sh deploy/venv.sh "$(VENV)"
	@sh deploy/leveldb.sh "$(BIN)/python"
	@echo "Installing Sluice, Spark and the tools into $(VENV); the first time takes a few minutes."
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint deploy/constraints.txt \
		--editable '.[spark,archive,otel,dev]'
	@touch $@

java:  ## find or install Java 17 or later, which Spark needs
	@sh deploy/java.sh >/dev/null

# On Python 3.11; the image has a later one, and so another package for LevelDB. A file for each step: a pipe would hide
# that its first part failed.
constraints:  ## renew deploy/constraints.txt with the newest versions within the bounds
	@rm -rf build/constraints
	@PYTHON="$(PYTHON)" sh deploy/venv.sh build/constraints
	@build/constraints/bin/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo "The constraints are made with Python 3.11: make PYTHON=python3.11 constraints" >&2; exit 1; }
	build/constraints/bin/python -m pip install --disable-pip-version-check --quiet --editable '.[spark,archive,otel,dev]'
	sed -n '/^#/p' deploy/constraints.txt >build/constraints/head
	build/constraints/bin/python -m pip freeze --exclude-editable >build/constraints/installed
	build/constraints/bin/python -m pip index versions --python-version 3.12 plyvel-next >build/constraints/index
	sed -n '1s/ (\(.*\))/==\1/p' build/constraints/index >build/constraints/later
	@grep -q '^plyvel-next==[0-9]' build/constraints/later || \
		{ echo "pip index does not say the newest plyvel-next" >&2; exit 1; }
	cd build/constraints && sort -uf head installed later >all
	@mv build/constraints/all deploy/constraints.txt && rm -rf build/constraints

check: $(STAMP)  ## formatting, lint, types, and the repository's own rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest --quiet tests/test_tidy.py tests/test_rooms.py
	$(BIN)/python docs/api.py build/api

format: $(STAMP)  ## format the code as check wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

api: $(STAMP)  ## the API reference of sluice.datastream and sluice.publishers.spark, in build/api
	$(BIN)/python docs/api.py build/api

test: $(STAMP)  ## the tests, but for slow ones; 8 minutes
	JAVA_HOME="$$(sh deploy/java.sh)" && export JAVA_HOME && unset PYTHONDONTWRITEBYTECODE && \
	$(BIN)/pytest --numprocesses $(JOBS) --dist loadfile --durations 25 --durations-min 5 $(ARGS)

test-all: ARGS += --slow
test-all: test  ## all tests; half an hour

matrix: $(STAMP)  ## the Spark tests with other versions; ARGS="--python python3.13 --pyspark 4.2.0"
	$(BIN)/python -m tests.spark_matrix $(ARGS)

atheris: $(STAMP)  ## coverage-guided fuzzers of what peers send; MINUTES=1 each, which add up
	$(BIN)/python -m tests.fuzzing --minutes $(MINUTES) $(ARGS)

sim: $(STAMP)  ## simulate the publish protocol; SEEDS=10000, or SEEDS=A-B
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

chaos: $(STAMP)  ## three nodes under publishers, readers and faults; SEED=N replays, BLOCKS=2000
	$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) --blocks $(BLOCKS) $(ARGS)

fuzz: $(STAMP)  ## the long fuzzers of the data streamer; CASES=100000 each
	@for module in $(basename $(notdir $(wildcard tests/datastream/fuzz_*.py))); do \
		echo "$$module"; $(BIN)/python -m tests.datastream.$$module --cases $(CASES) || exit 1; done

bench: $(STAMP)  ## speed, as ratios to bare loops in the same run
	JAVA_HOME="$$(sh deploy/java.sh)" && export JAVA_HOME && $(BIN)/python -m benchmarks $(ARGS)

demo: $(STAMP)  ## the main job: three nodes, three racing Spark publishers, two readers, and what goes wrong
	@JAVA_HOME="$$(sh deploy/java.sh)" && export JAVA_HOME && exec $(BIN)/sluice demo $(ARGS)

proto: $(STAMP)  ## regenerate gateway/api from proto/
	$(BIN)/python -m sluice.gateway.api

clean:  ## remove .venv and caches
	@if [ -e $(VENV)/pyvenv.cfg ]; then rm -rf $(VENV); fi
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
