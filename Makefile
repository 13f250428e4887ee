# Needs make, python3 (3.11 or newer) and pip's network; on Debian and Ubuntu what is missing
# of python3 is installed with apt-get.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run test lint unit-test sandbox-test cluster-test bench-admission bench-queue clean

help: ## Show this list.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(READY) ## Make the virtual environment, with everything to run and test.

$(READY): pyproject.toml
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(MAKE) --no-print-directory apt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.PHONY: apt
apt:
	@command -v apt-get >/dev/null || { echo "python3 with venv is missing: install it" >&2; exit 1; }
	@if [ "$$(id -u)" = 0 ]; then sudo=; else sudo=sudo; fi; \
	$$sudo apt-get update -qq && \
	$$sudo apt-get install -qq --no-install-recommends python3 python3-venv

run: $(READY) ## Play a working day on a cluster in a box (ARGS=--once ends after it).
	$(BIN)/fairslice sandbox $(ARGS)

test: lint unit-test sandbox-test ## Check everything that needs no cluster.

lint: $(READY) ## Check style, types and import directions.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

unit-test: $(READY) ## Run unit, property and integration tests.
	$(BIN)/pytest -m 'not cluster' --numprocesses auto $(ARGS)

# One process: the scenarios share a cluster, and some measure seconds.
sandbox-test: $(READY) ## Run the end-to-end scenarios on the sandbox.
	env -u FAIRSLICE_CLUSTER_KUBECONFIG $(BIN)/pytest -m cluster tests/cluster $(ARGS)

cluster-test: $(READY) ## Run the end-to-end scenarios on a real cluster: KUBECONFIG=path
	@test -f "$(KUBECONFIG)" || { echo "name a cluster: make cluster-test KUBECONFIG=path" >&2; exit 2; }
	FAIRSLICE_CLUSTER_KUBECONFIG='$(abspath $(KUBECONFIG))' $(BIN)/pytest -m cluster tests/cluster $(ARGS)

bench-admission: $(READY) ## Measure the webhook against a constant reply (ARGS='-o json').
	$(BIN)/python -m benchmarks.admission $(ARGS)

# Only a cluster named on the command line: what the shell exports may be anybody's.
ifeq ($(origin KUBECONFIG),command line)
BENCH_CLUSTER := --kubeconfig '$(abspath $(KUBECONFIG))'
endif

bench-queue: $(READY) ## Measure the queue; on a real control plane, too, with KUBECONFIG=path.
	$(BIN)/python -m benchmarks.queueing $(BENCH_CLUSTER) $(ARGS)

clean: ## Remove the virtual environment and all caches.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
