# Two commands do everything on a fresh machine: `make reproduce` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help reproduce test test-long lint check docs site bench regression faults fuzz format release clean

help:
	@echo "make reproduce   the paper's experiment: figures, table and data in results/"
	@echo "make test        lint, types, import contracts, tests, docs"
	@echo "make test-long   the tests that take long"
	@echo "make check       the tests alone"
	@echo "make bench       the benchmarks with all peers: tables and pictures in results/bench"
	@echo "make regression  has something become slow? a minute"
	@echo "make faults      kill everything at random moments, 50 times: minutes"
	@echo "make fuzz        100,000 generated inputs: command lines, files, lives of an optimizer; FUZZ=10000 for fewer"
	@echo "make docs        the documentation in docs/_build/html"
	@echo "make site        the same, and every page of it opened in a browser"
	@echo "make release     everything before an upload, and the artefacts in dist/; uploads nothing"
	@echo "make format      format the code"

reproduce: $(VENV)/.cli
	$(BIN)/tiebreak reproduce

# Types and documentation first, side by side; then the tests, with those of the built pages.
test: $(VENV)/.dev
	$(MAKE) --jobs=2 lint docs
	TIEBREAK_SITE=docs/_build/html $(MAKE) check

# Each of two processes takes half of the tests, in order, so that what a file's tests share is made once.
check: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not long"

test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m long tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

# The built pages in a browser: formulas, links, nothing from outside.
site: docs
	TIEBREAK_SITE=docs/_build/html $(BIN)/python -m pytest -q -p no:cacheprovider tests/test_site.py

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

regression: $(VENV)/.dev
	$(BIN)/python -m benchmarks.regression

faults: $(VENV)/.dev
	TIEBREAK_FAULTS=50 $(BIN)/python -m pytest -q tests/test_faults.py

# One file after the other, a process each: memory is given back in between.
FUZZ ?= 100000
fuzz: $(VENV)/.dev
	for part in torch/test_fuzz_torch torch/test_fuzz_states cli/test_fuzz_cli studies/test_fuzz_files; do \
	    TIEBREAK_FUZZ=$(FUZZ) $(BIN)/python -m pytest -v -p no:cacheprovider tests/$$part.py || exit 1; \
	done

# What was built is tried on every Python that is found here; RELEASE="--check" for the consistency alone.
release: $(VENV)/.dev
	$(BIN)/python tools/release.py $(RELEASE)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) results build dist docs/_build docs/examples .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.python:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.cli: $(VENV)/.python pyproject.toml
	@echo "Installing what the commands need: about half a minute."
	$(PIP) -e ".[cli]"
	touch $@

# torch first and pinned: whatever depends on it then takes it as it is.
$(VENV)/.dev: $(VENV)/.python pyproject.toml
	$(PIP) torch==2.13.0
	$(PIP) -e ".[dev,jax]"
	touch $@ $(VENV)/.cli

# The peers too.
$(VENV)/.bench: $(VENV)/.python pyproject.toml
	$(PIP) torch==2.13.0
	$(PIP) -e ".[bench]"
	touch $@
