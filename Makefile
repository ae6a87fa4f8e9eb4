# Development tasks; they need only python3 and make. `make` lists them.
#
#   make PYTHON=python3.12 test            use another Python for the virtual environment
#   make test PYTEST_ARGS="-k plan -x"     pass other arguments to pytest

PYTHON ?= python3
PYTEST_ARGS ?= -n auto --dist worksteal --durations 25 --durations-min 10
DEMO_ARGS ?=
MAPS_ARGS ?= --seconds 10
TRAIN_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --quiet --disable-pip-version-check
# Stamp files of the set-up: the virtual environment, graphrl with its requirements, and all packages for tests and
# documentation. A step runs again only if its files change.
CREATED := $(VENV)/.created
INSTALLED := $(VENV)/.installed
LOCKED := $(VENV)/.locked
ROOT := $(CURDIR)
WHEEL := $(ROOT)/.cache/wheel

.DEFAULT_GOAL := help
.PHONY: help venv train demo maps test quick lint types docs format bench notebooks wheel fresh lock clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

venv: $(LOCKED) ## set up .venv from requirements.lock (other targets do it when needed)

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "graphrl needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1): choose another with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "==> $(PYTHON) has no venv: installing Debian's python3-venv"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null; \
	  else \
	    echo "$(PYTHON) has no venv: install it first (Debian, Ubuntu: sudo apt-get install python3-venv)" >&2; exit 1; \
	  fi; }
	@echo "==> setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(INSTALLED): $(CREATED) requirements.lock pyproject.toml
	@echo "==> installing graphrl (editable) with the versions of requirements.lock (1.3 GB on disk; a minute or two the first time)"
	@$(PIP) install -c requirements.lock setuptools
	@$(PIP) install -c requirements.lock --no-build-isolation --editable .
	@touch $@

$(LOCKED): $(INSTALLED)
	@echo "==> installing all packages of requirements.lock (0.4 GB more on disk)"
	@$(PIP) install -r requirements.lock
	@touch $@

train: $(INSTALLED) ## train a small REGAL on random graphs, and compare it on held-out ones
	@$(VENV)/bin/graphrl train regal --config scripts/train.toml --out out/train/run --resume $(TRAIN_ARGS)
	@$(VENV)/bin/graphrl evaluate out/train/run --evaluations 5000 --methods brkga,list --output out/train/rows.jsonl --histogram out/train/improvements.png

demo: venv ## optimise ResNet-50 (ONNX and traced JAX), and print tables
	@$(PY) scripts/demo.py $(DEMO_ARGS)

maps: $(INSTALLED) ## map ResNet-50 to the memories of a chip, also with EGRL
	@mkdir -p out/maps
	@$(VENV)/bin/graphrl map zoo:resnet50/inference/b1/jaxpr $(MAPS_ARGS) --output out/maps/auto.json --plot out/maps/auto.png
	@$(VENV)/bin/graphrl map zoo:resnet50/inference/b1/jaxpr --method egrl:variant=ea --evaluations 4000 --output out/maps/egrl.json

# All tests run on the built wheel, from an empty folder: they test what a user installs.
test: lint types docs wheel ## everything as in CI: lint, types, docs, and all tests on the built wheel
	@echo "==> tests"
	@cd "$(WHEEL)/empty" && PYTHONPATH="$(WHEEL)/site" "$(ROOT)/$(PY)" -P -m pytest \
	  --config-file="$(ROOT)/pyproject.toml" --rootdir="$(ROOT)" "$(ROOT)/tests" $(PYTEST_ARGS)

quick: venv ## run the tests that are not slow, on the working tree
	@$(PY) -m pytest -m "not slow" $(PYTEST_ARGS)

lint: venv ## check rules and format with ruff
	@echo "==> ruff"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .

types: venv ## check types with mypy
	@echo "==> mypy"
	@$(PY) -m mypy

docs: venv ## build the documentation in .cache/docs, with warnings as errors
	@echo "==> docs"
	@$(PY) -m sphinx --fail-on-warning --keep-going --quiet --doctree-dir .cache/docs/doctrees docs .cache/docs/html

format: venv ## fix rules and format with ruff
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench: $(INSTALLED) ## measure the throughput of the search
	@$(VENV)/bin/graphrl bench $(BENCH_ARGS)

notebooks: venv ## run the notebooks, and store their outputs
	@$(VENV)/bin/jupyter-execute --inplace notebooks/*.ipynb

# build/ is removed first: setuptools would put files of an earlier build into the wheel.
wheel: venv ## build the wheel and install it in .cache/wheel/site
	@echo "==> wheel"
	@rm -rf build "$(WHEEL)" && mkdir -p "$(WHEEL)/empty"
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir "$(WHEEL)/dist" .
	@$(PIP) install --no-deps --no-index --target "$(WHEEL)/site" "$(WHEEL)"/dist/*.whl
	@rm -rf build

# What a new user meets: nothing but the wheel and its requirements, an empty home, no caches. Then the same with caches.
fresh: wheel ## install the wheel in a fresh environment, and time the first lines of README there
	@rm -rf .cache/fresh && $(PYTHON) -m venv .cache/fresh
	@.cache/fresh/bin/python -m pip --quiet --disable-pip-version-check install "$(WHEEL)"/dist/*.whl
	@awk '/^```python/ { on = 1; next } /^```/ && on { exit } on' README.md > .cache/fresh/lines.py
	@cd .cache/fresh && for caches in without with; do \
	  start=$$(date +%s%N); env -u XDG_CACHE_HOME -u PYTHONPATH HOME="$$PWD" bin/python lines.py >/dev/null || exit 1; \
	  echo "README's first lines, $$caches caches: $$(( ($$(date +%s%N) - start) / 1000000 )) ms"; \
	done

lock: ## update requirements.lock in a fresh environment
	@rm -rf .cache/lock && mkdir -p .cache
	@$(PYTHON) -m venv .cache/lock
	@.cache/lock/bin/python -m pip --quiet --disable-pip-version-check install --upgrade ".[dev]"
	@{ echo "# Pinned versions that the tests ran with, made by 'make lock' with $$($(PYTHON) --version). No addresses."; \
	   .cache/lock/bin/python -m pip --disable-pip-version-check freeze --all --exclude graphrl --exclude pip; } > .cache/requirements.lock
	@if grep -n '@\|://' .cache/requirements.lock; then echo "requirements.lock was not written: it would contain addresses" >&2; exit 1; fi
	@mv .cache/requirements.lock requirements.lock && rm -rf .cache/lock build
	@echo "requirements.lock: $$(grep -c == requirements.lock) packages"

clean: ## remove the environment, caches and builds
	rm -rf $(VENV) .cache build dist *.egg-info .hypothesis .ruff_cache .mypy_cache .pytest_cache
	find graphrl scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
