# Everything a checkout needs. Targets write to .venv, build/ and the tools' caches only; clean removes all of them.

VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
PYTHONS := python3.13 python3.12 python3.11 python3

.PHONY: help venv demo test lint types bench chaos survival kafka clean
.DEFAULT_GOAL := help

help:
	@echo "make venv    create $(VENV) with the pinned dependencies and this package"
	@echo "make demo    run a replicated pipeline, kill a node, report what was noticed (build/demo)"
	@echo "make test    run the tests, without those that take minutes each"
	@echo "make lint    ruff check and ruff format --check"
	@echo "make types   mypy --strict on src, ordinary mypy on tests"
	@echo "make bench   run the core benchmark"
	@echo "make chaos   run 30 seeded schedules of real faults and check every result (build/chaos)"
	@echo "make survival  all tests on running flows, also those that make test leaves out"
	@echo "make kafka   fetch the Kafka server of the tests with Maven, into a cache outside the tree"
	@echo "make clean   remove $(VENV), build/ and caches"

venv: $(STAMP)

# A name on PATH is not enough (version managers leave shims that fail, and some systems split venv off),
# so each candidate has to show that it runs, is new enough and can create an environment with pip.
$(STAMP): requirements.lock pyproject.toml
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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $(STAMP)

demo: venv
	$(BIN)/unbroken demo --out build/demo

test: venv
	@mkdir -p build
	@# Servers are mostly waited for, so their tests run beside those that only compute.
	@$(BIN)/python -m pytest -q -m "servers and not (slow or cluster)" > build/servers.txt 2>&1 & servers=$$!; \
	$(BIN)/python -m pytest -q -n 2 -m "not (slow or spark or cluster or servers)"; others=$$?; \
	wait $$servers; found=$$?; cat build/servers.txt; [ $$others = 0 ] && [ $$found = 0 ]
	$(BIN)/python -m pytest -q -m "(spark or cluster) and not slow"

lint: venv
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests

types: venv
	$(BIN)/mypy --strict src
	$(BIN)/mypy --allow-untyped-defs --allow-untyped-calls --allow-untyped-decorators --allow-any-generics \
	  --no-warn-return-any --no-warn-unused-ignores --implicit-reexport tests

bench: venv
	$(BIN)/unbroken bench core --json

chaos: venv
	$(BIN)/unbroken chaos --seeds 1-30 --json

survival: venv
	$(BIN)/python -m pytest -q -m "slow or cluster" tests/recovery tests/cluster tests/strategies tests/guarantees tests/ordering tests/bench tests/partitions tests/consistency tests/metrics

kafka: venv
	$(BIN)/python tests/kafka/broker.py fetch

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
