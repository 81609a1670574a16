# Every target makes or refreshes the environment it needs; the stamps make the second time quick.
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

# Installing has built them already; this does so when their sources change. What is missing for that it only says.
$(NATIVE): $(STAMP) $(wildcard src/stoker/native/*.[ch]) src/stoker/native/building.py
	@$(BIN)/python -m stoker.native
	@touch $@

$(BENCH): $(STAMP) $(NATIVE)
	@$(PIP) --editable '.[bench]'
	@touch $@

demo: $(NATIVE)  ## Load, train, stop, resume: the main job end to end, on data it makes itself
	@$(BIN)/python -m examples.demo

test: $(NATIVE)  ## Run the tests; they pass whatever else the machine does
	$(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-profile repeat -m "not timed"

test-timed: $(NATIVE)  ## Run the few tests that measure time, one by one: leave the machine alone meanwhile
	$(BIN)/python -m pytest --hypothesis-profile repeat -m timed

SECONDS ?= 600
chaos: $(NATIVE)  ## Kill, stop, interrupt and rewrite at random for SECONDS=600 each way; the figures are printed
	STOKER_CHAOS_SECONDS=$(SECONDS) $(BIN)/python -m pytest -q tests/faults/test_chaos.py

check: $(NATIVE)  ## Format, lint, strict types, import rule, quick tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow and not timed"

format: $(STAMP)  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH)  ## Measure overhead, plan, state, transport, start-up and memory beside their peers
	$(BIN)/python -m benchmarks

# The list has all that is needed, so that nothing is looked for: what some peers declare would bring CUDA's torch.
$(PEERED): benchmarks/peers.txt constraints.txt
	@test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	@echo "preparing the environment of the peers in $(PEERS) (torch first, then the rest)"
	@$(PEERPIP) --constraint constraints.txt torch
	@$(PEERPIP) --no-deps --requirement benchmarks/peers.txt
	@$(PEERPIP) --no-deps --editable .
	@touch $@

peers: $(PEERED)  ## Make the environment with many peers, in which the benchmarks tokens, prepare, packing and resume then run

# FFCV is built from source, and needs OpenCV and libturbojpeg with their headers: where they are not, it is left out.
$(IMAGE_PEERED): benchmarks/image_peers.txt constraints.txt
	@test -x $(IMAGE_PEERS)/bin/python || $(PYTHON) -m venv $(IMAGE_PEERS)
	@echo "preparing the environment of the loaders of images in $(IMAGE_PEERS) (torch first, then the rest; 3 GB)"
	@$(IMAGE_PIP) --constraint constraints.txt torch
	@$(IMAGE_PIP) --no-deps --requirement benchmarks/image_peers.txt
	@$(IMAGE_PIP) --no-deps --no-build-isolation ffcv==1.0.2 2>/dev/null || \
		echo "ffcv is left out: it could not be built (it needs libopencv-dev and libturbojpeg0-dev)"
	@$(IMAGE_PIP) --no-deps --editable .
	@touch $@

image-peers: $(IMAGE_PEERED)  ## Make the environment with other loaders of images, in which the benchmark images then runs

clean:  ## Remove the environments and everything made
	rm -rf src/stoker/native/libstoker*.so* $(VENV) $(PEERS) $(IMAGE_PEERS) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
