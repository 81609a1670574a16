# Every target makes or refreshes the environment it needs; the stamps make the second time quick.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
BENCH  := $(VENV)/.ready-bench
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help demo test check format bench clean
help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "preparing the environment in $(VENV) (torch first, then the rest)"
	@$(PIP) torch
	@$(PIP) --editable '.[dev]'
	@touch $@

$(BENCH): $(STAMP)
	@$(PIP) --editable '.[bench]'
	@touch $@

demo: $(STAMP)  ## Load, train, stop, resume: the main job end to end, on data it makes itself
	@$(BIN)/stoker demo

test: $(STAMP)  ## Run every test
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(STAMP)  ## Format, lint, strict types, import rule, quick tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow"

format: $(STAMP)  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH)  ## Measure overhead, plan, state, transport, start-up and memory beside their peers
	$(BIN)/python -m benchmarks

clean:  ## Remove the environment and everything made
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
