# Targets set up what they need, once: .venv, and .venv-upstream for test-upstream.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UPSTREAM := .venv-upstream
UPSTREAM_READY := $(UPSTREAM)/.ready
JOBS ?= 2
# On a CPU also where there is a GPU, whose sums are not the same each time; one thread a process. The tests of a file
# stay together, for they share what they build, but for those of the pages, the most of which are in one file. Files
# with few, but long tests do not come last.
PYTEST = CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# A test that hangs is stopped, and shows where; none of these comes near.
WATCHED := --timeout 600
INSTALL := -m pip install --quiet --disable-pip-version-check -c constraints.txt
CHECK_PYTHON = $(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 10) else \
    f"error: Python {v[0]}.{v[1]} found, 3.10 or newer expected; run: make PYTHON=python3.13 $(MAKECMDGOALS)")'

.PHONY: help setup demo test test-docs test-slow test-commands test-fast test-upstream test-pairs test-faults test-losses test-bands test-gpus check docs gallery zoo dist clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  \1	/p' Makefile | expand -t 18

setup: $(READY)  ## install the package and its pinned dependencies into .venv

demo: $(READY)  ## train, predict and evaluate on the embedded images: about ten minutes on two CPU cores
	$(BIN)/python -m vitdense demo

# The longest files first, or one core waits for them at the end.
LONGEST := tests/models tests/mm
OTHERS := $(filter-out $(LONGEST:=/),$(wildcard tests/*/)) $(wildcard tests/test_*.py)
test: $(READY)  ## the tests that need neither a network nor a GPU: some eleven minutes on two CPU cores
	$(PYTEST) $(WATCHED) -m 'not slow and not docs and not commands and not pairs' $(LONGEST) $(OTHERS)

# Files with a marker: to import the others takes as long as some of the tests.
MARKED = $$(grep -rl --include='*.py' 'mark\.$(1)\b' tests | sort)
test-commands: $(READY)  ## the commands as users start them, also in several processes: some five minutes
	$(PYTEST) $(WATCHED) -m 'commands and not slow' $(call MARKED,commands)

test-docs: $(READY)  ## what the pages, the notebook and the gallery show: about five minutes
	$(PYTEST) --dist worksteal $(WATCHED) -m 'docs and not slow' $(call MARKED,docs)

test-pairs: $(READY)  ## options in pairs, each row a training, a test, predictions and an export: some ten minutes
	$(PYTEST) --dist load $(WATCHED) -m pairs tests/pairs

test-slow: $(READY)  ## what takes minutes, or repeats a proof for other models: an hour
	$(PYTEST) -m slow

test-losses: $(READY)  ## fifty steps of every nano recipe against stored losses; UPDATE=1 stores them: ten minutes
	UPDATE=$(UPDATE) $(PYTEST) -n 0 -m slow tests/mm/train/test_stored_losses.py

test-bands: $(READY)  ## whole trainings of three nano recipes against bands of AP and mIoU: an hour
	$(PYTEST) -m slow tests/mm/train/test_bands.py

EXAMPLES = 1000
test-faults: $(READY)  ## damaged annotations, checkpoints and odd options, EXAMPLES=1000 of each
	EXAMPLES=$(EXAMPLES) $(PYTEST) -m slow tests/faults

test-gpus: $(READY)  ## what a GPU proves: all backbones, the nano recipes; and two: NCCL, SyncBN, shards
	$(BIN)/python -m pytest tests/models/test_on_gpu.py tests/mm/test_recipes_on_gpu.py
	$(BIN)/python -m pytest -m 'not docs' tests/tools/test_gpus.py tests/tools/test_processes.py

test-fast: $(READY)  ## what contributors run between edits (all but tests marked slow, docs or long): about four minutes
	$(PYTEST) -m 'not slow and not long and not docs and not pairs'

test-upstream: $(UPSTREAM_READY)  ## the tools and nano configs on the original OpenMMLab packages, in .venv-upstream
	$(UPSTREAM)/bin/python -m pytest tests/tools/test_tools.py tests/mm tests/test_configs.py

check: $(READY)  ## ruff: lint and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

docs: $(READY)  ## build the book into site/; to read and search it: python -m http.server -d site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

gallery: $(READY)  ## make the pictures of docs/images; it says which demo to train first
	$(BIN)/python scripts/gallery.py

zoo: $(READY)  ## write the tables of docs/model-zoo.md
	$(BIN)/python scripts/zoo.py

dist: $(READY)  ## build the sdist and the wheel into dist/
	$(BIN)/python -m build

clean:  ## remove both environments and build outputs
	rm -rf $(VENV) $(UPSTREAM) *.egg-info build dist site

$(READY): pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	@echo "installing into $(VENV): about 6 GB, some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -e '.[mm,test]'
	$(BIN)/python -m vitdense
	@touch $@

$(UPSTREAM_READY): pyproject.toml constraints.txt requirements-upstream.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(UPSTREAM)
	$(UPSTREAM)/bin/python $(INSTALL) -r requirements-upstream.txt -e .
	@touch $@
