# kvmesh: the front door. `make serve` serves a chat model, `make test` proves it.

PYTHON      ?= python3
PORT        ?= 8000
STATE       ?= .state
MODEL       ?= smollm2-135m
TORCH_INDEX ?=
ARGS        ?=
JOBS        ?= 2

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup serve demo-roles test test-parts test-whole check bench soak clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.ready ## make .venv with every pinned dependency (TORCH_INDEX=URL chooses the torch builds)

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "kvmesh needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try make PYTHON=python3.11"; exit 1; }
	@echo "==> making $(VENV) (once; a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) "torch==2.13.0" $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX),)
	@$(PIP) --editable '.[dev,picture]'
	@touch $@

serve: setup ## serve MODEL on PORT with one prefill and one decode worker (ARGS= passes more to `kvmesh up`)
	@$(BIN)/kvmesh up --model $(MODEL) --port $(PORT) --state $(STATE) $(ARGS)

demo-roles: setup ## watch the roles of simulated workers follow a load that swings (ARGS="--seconds 30" ends it)
	@$(BIN)/kvmesh pull smollm2-135m >/dev/null
	@$(BIN)/kvmesh demo-roles --state $(STATE)/demo-roles $(ARGS)

test: test-parts test-whole ## the short forms of every test, in minutes

test-parts: setup ## those of single parts, JOBS=2 files at a time
	@$(BIN)/kvmesh pull smollm2-135m
	@$(BIN)/python -m pytest -m "not slow" --ignore tests/workers --ignore tests/mesh \
	  --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-whole: setup ## those of workers and of whole meshes, one after the other: each keeps the machine busy
	@$(BIN)/kvmesh pull smollm2-135m
	@$(BIN)/python -m pytest -m "not slow" tests/workers tests/mesh $(ARGS)

soak: setup ## the long forms
	@$(BIN)/kvmesh pull smollm2-135m
	@$(BIN)/python -m pytest --timeout 3600 $(ARGS)

check: setup ## ruff, mypy --strict, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

bench: setup ## every benchmark; each ends in one line of JSON
	@for script in $$(grep -l __main__ tests/perf/*.py); do \
	  name=$$(basename $$script .py); echo "==> $$name"; $(BIN)/python -m tests.perf.$$name || exit 1; done

clean: ## remove the environment, state and caches (the model cache stays)
	@rm -rf $(VENV) $(STATE) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
