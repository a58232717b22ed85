# Everything sets itself up: Python 3.11 or newer and make are all that is needed first.
#
#   make demo       a whole migration on a local Azurite
#   make test       what CI runs: checks, then all tests
#   make test-tools what the tests themselves are made with
#   make check      formatting, lint, types, workflows
#   make workflows  what zizmor and actionlint find in the workflows
#   make coverage   all tests, and how much of the code they run
#   make soak       what takes too long for `make test`; each search goes on for SOAK_SECONDS
#   make lowest     all tests, with the lowest versions of packages that pyproject.toml allows
#   make bench      ratios, measured side by side in one run
#   make fmt        format the code
#   make pictures   draw the pictures of the documents; `make recording` records the demo again
#   make lock       pin the packages of development again (requirements-dev.txt)
#   make man        write the man pages of all commands, from their help
#   make site       build the site of all documents, into site/
#   make dist       build what is released, and check it
#   make clean      remove what the other targets made

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
SOAK_SECONDS ?= 600
# Whose tests `make soak` runs: all, or those of one tier, as in TIER=tests/unit.
TIER ?= tests
# The versions that are installed for development; `make LOCK=` takes the newest that pyproject.toml allows.
LOCK ?= requirements-dev.txt
# Two more than the two cores of a usual machine: much of a test's time is spent waiting, for leases, windows
# and processes.
WORKERS ?= 4
# Commands are started hundreds of times: what they import is compiled once, also where the surroundings say no.
unexport PYTHONDONTWRITEBYTECODE

is_new_enough = $(shell $(1) -c 'import sys; print("$(1)" if sys.version_info >= (3, 11) else "")' 2>/dev/null)
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11 python,$(call is_new_enough,$(name))))

.PHONY: demo test test-tools check workflows compiled coverage soak lowest bench fmt pictures recording lock man site dist clean
.DEFAULT_GOAL := test

has_python = @test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name it with make PYTHON=/path/to/python"; exit 2; }

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV = $(BIN)/uv pip install --quiet --python $(BIN)/python
# The lock names every package: with dependencies, pip asks for a hash of `coverage[toml]` beside that of `coverage`.
HASHED = --no-deps --require-hashes
# The entry of uv in the lock, with its hashes.
AWK_UV = awk '/^[^ ]/ { is_uv = /^uv==/ } is_uv'

# By uv in a tenth of pip's time; by pip where uv is not to be had, or the index is named in pip's configuration.
$(VENV)/.installed: pyproject.toml $(LOCK)
	$(has_python)
	$(PYTHON) -m venv $(VENV)
ifdef LOCK
	$(AWK_UV) $(LOCK) > $(VENV)/uv.txt
	$(PIP) $(HASHED) -r $(VENV)/uv.txt && $(UV) $(HASHED) -r $(LOCK) || $(PIP) $(HASHED) -r $(LOCK)
	$(PIP) --no-deps --no-build-isolation -e .
else
	$(PIP) uv && $(UV) -e '.[dev,release]' || $(PIP) -e '.[dev,release]'
endif
	@touch $@

# Azurite, pinned; and Node.js, where the machine has none.
$(VENV)/.azurite: $(VENV)/.installed rekey/rehearse/node/package-lock.json
	$(BIN)/python -m rekey.cli.node
	@touch $@

demo: $(VENV)/.azurite
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/rekey rehearse --demo

check: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(MAKE) --no-print-directory workflows

# actionlint is asked where it is installed: its package fetches a program when it is built.
workflows: $(VENV)/.installed
	$(BIN)/zizmor --quiet --offline .github action.yml
	@if command -v actionlint >/dev/null; then actionlint; else echo "actionlint is not installed: not asked"; fi

# While they are checked Azurite is installed, and the tests are compiled, or each worker would do it: half a
# minute of a clean clone.
test: $(VENV)/.installed
	@$(MAKE) --no-print-directory -j3 check compiled $(VENV)/.azurite
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not soak" --ignore tests/tools

# What the tests are made with: the tables in memory, the judge of histories, the rows of examples.
test-tools: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(WORKERS) -m "not soak" tests/tools

# What cannot be collected is told by the tests' own run. Later than that a worker compiles what has changed.
compiled: $(VENV)/.installed
	@test -d tests/repo/__pycache__ || $(BIN)/python -m pytest --collect-only -q >/dev/null || true

coverage: $(VENV)/.azurite
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not soak" --timeout 900 \
		--cov --cov-report=term:skip-covered --cov-report=xml

soak: $(VENV)/.azurite
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak -s --timeout 0 $(TIER)

# In an environment of its own: what rekey needs, in the lowest versions that pyproject.toml allows; the tools as
# in the lock.
LOWEST = $(VENV)/lowest
lowest: $(VENV)/.azurite
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --python $(BIN)/python --no-header --no-annotate \
		--no-emit-index-url --extra keyvault --extra dask --extra metrics pyproject.toml -o $(VENV)/lowest.txt
	awk -F == 'NR == FNR { low[$$1]; next } /^[a-z]/ && !($$1 in low) { sub(/ \\$$/, ""); print }' \
		$(VENV)/lowest.txt requirements-dev.txt > $(VENV)/tools.txt
	$(PYTHON) -m venv --clear $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python -e '.[dev]' -c $(VENV)/lowest.txt -c $(VENV)/tools.txt
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist loadgroup -m "not soak" $(TIER)

bench: $(VENV)/.azurite
	$(BIN)/python -m benchmarks

fmt: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pictures: $(VENV)/.installed
	$(BIN)/python docs/pictures/draw_phases.py

recording: $(VENV)/.azurite
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/pictures/record_demo.py

# Neither where packages come from nor a path of this machine is written into it. One file for all Pythons.
lock: $(VENV)/.installed
	echo '# Made by `make lock` from pyproject.toml.' > requirements-dev.txt
	$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --extra dev --extra release --no-header \
		--generate-hashes --no-emit-index-url --no-annotate pyproject.toml 2>/dev/null >> requirements-dev.txt

man: $(VENV)/.installed
	rm -rf man
	$(BIN)/python -m docs.man_pages man

site: $(VENV)/.installed
	$(BIN)/python -m mkdocs build --strict # with --quiet no warning would count

dist: man
	rm -rf build dist
	$(BIN)/python -m build --no-isolation # by the setuptools of the lock
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) build dist man site *.egg-info .coverage* coverage.xml .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
