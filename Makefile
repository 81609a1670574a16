# Every target creates or updates the environment it needs; stamp files make the second run quick.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
NATIVE := $(VENV)/.ready-native
BENCH  := $(VENV)/.ready-bench
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

PEERS  := .venv-peers
PEERED := $(PEERS)/.ready
PEERPIP := $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check

IMAGE_PEERS  := .venv-image-peers
IMAGE_PEERED := $(IMAGE_PEERS)/.ready
IMAGE_PIP    := $(IMAGE_PEERS)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-timed chaos check format bench peers image-peers clean
help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "preparing the environment in $(VENV) (torch first, then the rest)"
	@$(PIP) torch
	@$(PIP) --editable '.[dev]'
	@touch $@

# Installing builds the native helpers; this rebuilds them when their sources change. Without a compiler it only prints a note.
$(NATIVE): $(STAMP) $(wildcard src/stoker/native/*.[ch]) src/stoker/native/building.py
	@$(BIN)/python -m stoker.native
	@touch $@

$(BENCH): $(STAMP) $(NATIVE)
	@$(PIP) --editable '.[bench]'
	@touch $@

demo: $(NATIVE)  ## Load, train, stop and resume, on data that it generates
	@$(BIN)/python -m examples.demo

test: $(NATIVE)  ## Run the tests; they pass on a busy machine too
	$(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile repeat -m "not timed"

test-timed: $(NATIVE)  ## Run the few tests that measure time, one by one: keep the machine idle meanwhile
	$(BIN)/python -m pytest --hypothesis-profile repeat -m timed

SECONDS ?= 600
chaos: $(NATIVE)  ## Kill, stop, interrupt and rewrite at random, for SECONDS=600 each; prints what happened
	STOKER_CHAOS_SECONDS=$(SECONDS) $(BIN)/python -m pytest -q tests/faults/test_chaos.py

check: $(NATIVE)  ## Format, lint, strict types, import rule, quick tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow and not timed"

format: $(STAMP)  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH)  ## Measure overhead, plan, state, transport, start-up and memory, compared with other loaders
	$(BIN)/python -m benchmarks

# The list is complete, so nothing is resolved: dependencies that some peers declare would bring the CUDA build of torch.
$(PEERED): benchmarks/peers.txt constraints.txt
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@echo "preparing the environment of other loaders in $(PEERS) (torch first, then the rest)"
	@$(PEERPIP) --constraint constraints.txt torch
	@$(PEERPIP) --no-deps --requirement benchmarks/peers.txt
	@$(PEERPIP) --no-deps --editable .
	@touch $@

peers: $(PEERED)  ## Create the environment with other loaders for the benchmarks tokens, prepare, packing and resume

# FFCV is built from source and needs the headers of OpenCV and libturbojpeg; without them it is left out.
$(IMAGE_PEERED): benchmarks/image_peers.txt constraints.txt
	@test -x $(IMAGE_PEERS)/bin/python || $(PYTHON) -m venv $(IMAGE_PEERS)
	@echo "preparing the environment of other image loaders in $(IMAGE_PEERS) (torch first, then the rest; 3 GB)"
	@$(IMAGE_PIP) --constraint constraints.txt torch
	@$(IMAGE_PIP) --no-deps --requirement benchmarks/image_peers.txt
	@$(IMAGE_PIP) --no-deps --no-build-isolation ffcv==1.0.2 2>/dev/null || \
		echo "ffcv is left out: it could not be built (it needs libopencv-dev and libturbojpeg0-dev)"
	@$(IMAGE_PIP) --no-deps --editable .
	@touch $@

image-peers: $(IMAGE_PEERED)  ## Create the environment with other image loaders for the benchmark images

clean:  ## Remove the environments and everything built
	rm -rf src/stoker/native/libstoker*.so* $(VENV) $(PEERS) $(IMAGE_PEERS) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
