# Gyre. `make help` lists the targets; each installs what it needs first.
SHELL := /bin/sh
SEED ?= 0
ENGINE ?= native
COUNT ?= 100000
PYTHON ?= python3
TOOLS := .tools
# uv from PATH, else from PyPI into a folder of this checkout.
UV := $(shell command -v uv 2>/dev/null || echo $(TOOLS)/bin/uv)
BIN := .venv/bin
# One thread a process: two torch threads on two busy cores are many times slower than one.
export OMP_NUM_THREADS ?= 1
export PYTHONHASHSEED ?= 0

.DEFAULT_GOAL := help
.PHONY: help install quickstart example test test-all bench fuzz lint clean install-sglang install-harnesses

help:  ## List the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

$(TOOLS)/bin/uv:
	@echo "uv not found: installing it from PyPI into $(TOOLS)/"
	@$(PYTHON) -m venv $(TOOLS) && $(TOOLS)/bin/python -m pip install --quiet uv

.venv/.installed: pyproject.toml uv.lock $(if $(filter $(TOOLS)/bin/uv,$(UV)),$(TOOLS)/bin/uv)
	@echo "installing the locked environment into .venv/ (some GB to download the first time)"
	@$(UV) sync --quiet --frozen
	@touch $@

install: .venv/.installed  ## Install the locked environment; afterwards the program is .venv/bin/gyre

infra/sglang/.venv/.installed: infra/sglang/pyproject.toml infra/sglang/uv.lock $(if $(filter $(TOOLS)/bin/uv,$(UV)),$(TOOLS)/bin/uv)
	@echo "installing SGLang's own environment into infra/sglang/.venv/"
	@$(UV) sync --quiet --frozen --no-install-project --project infra/sglang
	@touch $@

install-sglang: infra/sglang/.venv/.installed  ## Install SGLang's own environment (real SGLang, on the CPU where there is no GPU)

infra/harnesses/node_modules/.installed: infra/harnesses/package.json infra/harnesses/package-lock.json .venv/.installed
	@echo "installing the agent clients into infra/harnesses/node_modules/ (some 700 MB)"
	@$(BIN)/python -m infra.harnesses
	@touch $@

install-harnesses: infra/harnesses/node_modules/.installed  ## Install Claude Code, Codex CLI and Qwen Code, pinned, from npm

quickstart: install $(if $(filter sglang,$(ENGINE)),install-sglang)  ## Train a tiny model on real programming tasks (SEED=n, ENGINE=native|sglang)
	@$(BIN)/python -m examples.quickstart.run --seed $(SEED) --engine $(ENGINE)

example: install  ## Run an example (NAME=...)
	@test -d examples/$(NAME) || { echo "make: no example '$(NAME)'; there is: $$(ls examples)"; exit 1; }
	@$(BIN)/python -m examples.$(NAME).run

lint: install  ## ruff, mypy --strict, the import arrows
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports --no-cache

test: install  ## Tests on real Kafka, Faust, Megatron, chDB (<= 15 minutes on 2 cores)
	@$(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports --no-cache
	@$(BIN)/pytest -m "not slow"

test-all: install install-sglang install-harnesses  ## The slow legs: kills, real SGLang, real agent clients
	@$(BIN)/pytest -m slow

bench: install  ## A benchmark (NAME=log|proxy|...); its last line is one JSON object
	@test -f tests/bench/bench_$(subst -,_,$(NAME)).py || { echo "make: no benchmark '$(NAME)'; there is: $$(ls tests/bench | sed -n 's/^bench_\(.*\)\.py/\1/p' | tr _ - | xargs)"; exit 1; }
	@$(BIN)/python -m tests.bench.bench_$(subst -,_,$(NAME))

fuzz: install  ## Fuzzed requests at the proxy on real Kafka (SEED=n, COUNT=100000; <= 18 minutes); its last line is one JSON object
	@SEED=$(SEED) COUNT=$(COUNT) $(BIN)/python -m tests.fuzz.fuzz_proxy

clean:  ## Remove environments, runs and caches of this folder
	@rm -rf .venv .tools .gyre infra/sglang/.venv infra/harnesses/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
