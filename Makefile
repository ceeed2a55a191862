# Everything runs from .venv, which `make env` builds once and rebuilds only when its inputs change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
WORKERS ?= 2
MINUTES ?= 60

.DEFAULT_GOAL := help
.PHONY: help env browser demo bench bench-learning chaos strace test test-peers lint format clean

help:  ## show these lines
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{printf "make %-14s %s\n", $$1, $$2}'

env: $(READY)  ## build .venv with the pinned versions

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "qemrl needs Python 3.11 or newer; try: make env PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[atari,dev,minatar,mujoco,onnx,ray,sb3,tensorboard,torch,tune,video,wandb]'
	@touch $@

demo: env  ## train QR-DQN and QEM-DQN on MinAtar's Breakout: learning curves and a table, in 3 to 5 minutes
	$(BIN)/qemrl demo

bench: env  ## measure everything against peers, in about half an hour: results/bench.json, docs/performance.md
	$(BIN)/python -m benchmarks

bench-learning: env  ## learn beside the peers, in some hours, resumable: results/learning, docs/learning.md
	$(BIN)/python -m benchmarks learning

chaos: env strace  ## kill runs, damage files, make senseless calls, for MINUTES=60: results/chaos.json
	$(BIN)/python -m benchmarks chaos --minutes $(MINUTES)

strace:  ## install strace, with which the chaos campaign kills at system calls, from the system's packages
	$(call install,strace)

browser:  ## install Chromium, in which the tests open reports, from the system's packages
	$(call install,chromium)

define install
	@command -v $(1) > /dev/null || { \
	  command -v apt-get > /dev/null || { echo "install $(1): the tests need it"; exit 1; }; \
	  sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$sudo apt-get -qq update && $$sudo apt-get -qq install --yes --no-install-recommends $(1) > /dev/null; }
endef

test: env browser strace  ## run all tests, two at a time; make test WORKERS=8 on a larger machine
	$(BIN)/python -m pytest -n $(WORKERS)

test-peers: env  ## run the tests that need tianshou, in an environment of its own: results/peers/tianshou.txt
	@mkdir -p results/peers
	$(BIN)/python -m benchmarks.peers | tee results/peers/tianshou.txt

lint: env  ## check format, lint, types and which package imports which
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings
	$(BIN)/lint-imports --no-cache

format: env  ## put the code into the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove what the commands above made
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis demo fits
