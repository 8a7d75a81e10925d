# Everything a checkout needs. Targets write to .venv, build/ and the tools' caches only; clean removes all of them.

VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
PYTHONS := python3.13 python3.12 python3.11 python3

.PHONY: help venv demo test lint types docs reference new-user bench chaos survival schedules fuzz kafka chromium clean
.DEFAULT_GOAL := help

help:
	@echo "make venv    create $(VENV) with the pinned dependencies and this package"
	@echo "make demo    run a replicated pipeline, kill a node, report what was noticed (build/demo)"
	@echo "make test    run the tests, without those that take minutes each"
	@echo "make lint    ruff check and ruff format --check"
	@echo "make types   mypy --strict on src, ordinary mypy on tests"
	@echo "make docs    build the documentation as a site (build/site), with every warning an error"
	@echo "make reference  write the pages and pictures of the documentation that are made by code"
	@echo "make new-user   measure the way from pip install to the results of a first flow"
	@echo "make bench   run the core benchmark"
	@echo "make chaos   run 30 seeded schedules of real faults and check every result (build/chaos)"
	@echo "make survival  all tests on running flows, also those that make test leaves out"
	@echo "make schedules  200 seeded schedules for each test of the protocol that has some, instead of a few"
	@echo "make fuzz    many seeded inputs for everything that reads bytes of others; FUZZ_SECONDS=600"
	@echo "make kafka   fetch the Kafka server of the tests with Maven, into a cache outside the tree"
	@echo "make chromium  install the browser of the page's tests (Debian and Ubuntu, as root)"
	@echo "make clean   remove $(VENV), build/ and caches"

venv: $(STAMP)

# A name on PATH is not enough (version managers leave shims that fail, and some systems split venv off),
# so each candidate has to show that it runs, is new enough and can create an environment with pip.
$(STAMP): requirements.lock pyproject.toml lab/pyproject.toml
	@set -e; \
	python=; \
	for candidate in $(PYTHONS); do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python="$$candidate"; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "No suitable Python found: Unbroken needs Python 3.11 or later with the venv module." >&2; \
	  echo "Tried: $(PYTHONS). Install one of them (on Debian and Ubuntu: python3 and python3-venv)" >&2; \
	  echo "or name yours: make venv PYTHONS=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	echo "Creating $(VENV) with $$("$$python" --version)"; \
	rm -rf $(VENV); \
	"$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e . -e lab
	@touch $(STAMP)

demo: venv
	$(BIN)/unbroken demo --out build/demo

QUICK := not (slow or spark or cluster or servers)

# Tests that only compute: no sockets, no threads, and no time but that of a simulation. However slowly they run, nothing
# in them comes too late.
COMPUTING := tests/bench tests/chaos tests/client tests/network tests/protocol tests/sim

# Tests on Spark and nodes have deadlines, which a machine that is busy with something else may miss. What failed beside
# other tests is tried once more when these have ended, which is said; what fails then has failed.
NODES := $(BIN)/python -m pytest -q -o cache_dir=build/nodes-cache

# Running flows and servers are mostly waited for: nodes start, sessions end, results come. Tests that only compute run
# beside all others, at the lowest priority, and take the time of the cores that these leave over.
test: venv
	@mkdir -p build
	@nice -n 19 $(BIN)/python -m pytest -q -n 2 --timeout 900 -m "$(QUICK)" $(COMPUTING) > build/computing.txt 2>&1 & computing=$$!; \
	$(BIN)/python -m pytest -q -m "servers and not (slow or cluster)" > build/servers.txt 2>&1 & servers=$$!; \
	trap 'kill $$computing $$servers 2>/dev/null; exit 130' INT TERM; \
	failed=; \
	$(BIN)/python -m pytest -q -n 2 -m "$(QUICK)" $(COMPUTING:%=--ignore=%) || failed="$$failed, quick tests"; \
	wait $$servers || failed="$$failed, tests with servers"; cat build/servers.txt; \
	$(NODES) -m "(spark or cluster) and not slow" --durations 15; nodes=$$?; \
	wait $$computing || failed="$$failed, tests that compute"; cat build/computing.txt; \
	[ $$nodes != 1 ] || { echo "those that failed, alone on the machine:"; $(NODES) --last-failed; nodes=$$?; }; \
	[ $$nodes = 0 ] || failed="$$failed, tests on Spark and nodes"; \
	[ -z "$$failed" ] || { echo "failed: $${failed#, }" >&2; exit 1; }

lint: venv
	$(BIN)/ruff check src lab tests docs scripts
	$(BIN)/ruff format --check src lab tests docs scripts
	$(BIN)/lint-imports --no-logo

types: venv
	$(BIN)/mypy --strict src lab/src
	MYPYPATH=docs/pictures $(BIN)/mypy --strict scripts docs/hooks.py docs/pictures/draw.py
	$(BIN)/mypy --allow-untyped-defs --allow-untyped-calls --allow-untyped-decorators --allow-any-generics \
	  --no-warn-return-any --no-warn-unused-ignores --implicit-reexport tests

docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in build/site; to read it with search: python -m http.server -d build/site"

reference: venv
	$(BIN)/python -m unbroken_lab.docsgen docs
	$(BIN)/python docs/pictures/draw.py

# Inputs are made from a seed, so a finding is replayed by its name: python -m fuzz.campaign --replay csv:7:1234
FUZZ_SECONDS ?= 600
FUZZ_SEED ?= 1

fuzz: venv
	PYTHONPATH=tests $(BIN)/python -m fuzz.campaign --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

new-user: venv
	$(BIN)/python scripts/new_user.py

bench: venv
	$(BIN)/unbroken bench core --json

chaos: venv
	$(BIN)/unbroken chaos --seeds 1-30 --json

survival: venv
	$(BIN)/python -m pytest -q -m "slow or cluster" tests/recovery tests/cluster tests/strategies tests/guarantees tests/ordering tests/bench tests/partitions tests/consistency tests/metrics tests/page tests/deploy tests/testing tests/tracing tests/docs

# The first schedule is number 0 unless UNBROKEN_FIRST_SCHEDULE says otherwise; SCHEDULES=1000 asks for more of them.
SCHEDULES ?= 200

schedules: venv
	UNBROKEN_SCHEDULES=$(SCHEDULES) $(BIN)/python -m pytest -q -n 2 --timeout 900 $$(grep -l "schedules([0-9]" tests/protocol/test_*.py)

kafka: venv
	$(BIN)/python tests/kafka/broker.py fetch

# Elsewhere the tests of the page in a browser are left out and say so; UNBROKEN_CHROMIUM names another one.
chromium:
	@if [ -n "$$UNBROKEN_CHROMIUM" ] || command -v chromium >/dev/null 2>&1; then \
	  echo "there is a Chromium already"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	  (apt-get -qq update || true) && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; \
	else \
	  echo "Chromium cannot be installed from here: it takes root and apt-get. Install it, or set UNBROKEN_CHROMIUM" >&2; \
	  exit 1; \
	fi

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
