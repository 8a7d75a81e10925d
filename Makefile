# Everything a checkout needs. Targets write to .venv, build/ and the tools' caches only; clean removes all of them.

VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
PYTHONS := python3.13 python3.12 python3.11 python3

.PHONY: help venv archive demo test test-system lint types docs reference new-user bench chaos survival schedules fuzz kafka chromium clean
.DEFAULT_GOAL := help

help:
	@echo "make venv    create $(VENV) with the pinned dependencies and this package"
	@echo "make demo    run a replicated pipeline, kill a node, report what was noticed (build/demo)"
	@echo "make test    run the tests that take about ten minutes together: units, simulation, one cluster with a kill"
	@echo "make test-system  run the tests on Spark, nodes and servers, two at a time"
	@echo "make lint    ruff check and ruff format --check"
	@echo "make types   mypy --strict on src, ordinary mypy on tests"
	@echo "make docs    build the documentation as a site (build/site), with every warning an error"
	@echo "make reference  write the pages and pictures of the documentation that are made by code"
	@echo "make new-user   measure the way from pip install to the results of a first flow"
	@echo "make bench   run the core benchmark"
	@echo "make chaos   run 30 seeded schedules of real faults and check every result (build/chaos)"
	@echo "make survival  what is left out elsewhere: variations, experiments of the laboratory, cost limits, the tutorial"
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

# Every Spark session of the tests starts in half of the time with it. It is written once, to the user's cache directory.
archive: venv
	@$(BIN)/unbroken prepare || echo "sessions start without an archive of Spark's classes"

demo: venv
	$(BIN)/unbroken demo --out build/demo

# Tests that need no Spark, no nodes and no servers, and those of the others that show the most in little time: a cluster
# that loses a node, and segments on Spark.
QUICK := not (slow or spark or cluster or servers)
SMOKE := smoke and not slow

# Tests that only compute: no sockets, no threads, and no time but that of a simulation. However slowly they run, nothing
# in them comes too late.
COMPUTING := tests/lab/experiments tests/lab/chaos tests/lab/studies tests/lab/sim tests/sim tests/unit/client \
             tests/unit/flow tests/unit/protocol

PYTEST := $(BIN)/python -m pytest -q

# A test that fails fails the build: none is tried a second time. Running flows are mostly waited for: nodes start,
# sessions end, results arrive. Tests that only compute run next to all others, at the lowest priority, and take the time
# of the cores that these leave over.
test: venv archive
	@mkdir -p build
	@nice -n 19 $(PYTEST) -n 2 --timeout 900 -m "$(QUICK)" $(COMPUTING) > build/computing.txt 2>&1 & computing=$$!; \
	trap 'kill $$computing 2>/dev/null; exit 130' INT TERM; \
	failed=; \
	$(PYTEST) -m "$(SMOKE)" --durations 5 tests/system || failed="$$failed, tests on Spark and nodes"; \
	$(PYTEST) -n 2 -m "$(QUICK)" $(COMPUTING:%=--ignore=%) || failed="$$failed, quick tests"; \
	wait $$computing || failed="$$failed, tests that compute"; cat build/computing.txt; \
	[ -z "$$failed" ] || { echo "failed: $${failed#, }" >&2; exit 1; }

# Tests on nodes wait much of the time: for sessions that end, for results, for redundancy. So two lanes of tests run side
# by side, each file in one of them. Nothing in them may depend on how fast the machine is.
test-system: venv archive
	$(PYTEST) -n 2 --dist loadfile -m "(spark or cluster or servers) and not (slow or smoke)" --durations 25

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
	$(BIN)/python -m pytest -q -m slow

# The first schedule is number 0 unless UNBROKEN_FIRST_SCHEDULE says otherwise; SCHEDULES=1000 asks for more of them.
SCHEDULES ?= 200

schedules: venv
	UNBROKEN_SCHEDULES=$(SCHEDULES) $(BIN)/python -m pytest -q -n 2 --timeout 900 $$(grep -rl "schedules([0-9]" tests/sim tests/unit --include="test_*.py")

kafka: venv
	$(BIN)/python tests/kit/kafka/broker.py fetch

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
	find src lab tests -name __pycache__ -type d -prune -exec rm -rf {} +
