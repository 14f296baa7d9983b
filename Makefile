# Targets set up what they need, once: .venv, and .venv-upstream for test WHAT=upstream.
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
# What is imported is compiled then; all 20,000 files would take a minute and a half.
INSTALL := -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt
CHECK_PYTHON = $(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if v >= (3, 10) else \
    f"error: Python {v[0]}.{v[1]} found, 3.10 or newer expected; run: make PYTHON=python3.13 $(MAKECMDGOALS)")'

.PHONY: help setup demo test check docs gallery zoo dist clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  \1	/p' Makefile | expand -t 18

setup: $(READY)  ## install the package and its pinned dependencies into .venv

demo: $(READY)  ## train, evaluate and predict on drawn images: two to seven minutes on two CPU cores; ARGS=--overwrite starts anew
	$(BIN)/python -m vitdense demo $(ARGS)

# The longest files first, or one core waits for them at the end.
LONGEST := tests/models tests/mm
OTHERS := $(filter-out $(LONGEST:=/),$(wildcard tests/*/)) $(wildcard tests/test_*.py)
# Files with a marker: to import the others takes as long as some of the tests.
MARKED = $$(grep -rl --include='*.py' 'mark\.$(1)\b' tests | sort)
EXAMPLES ?= 1000
WHAT ?= quick
UNMARKED := not slow and not docs and not commands and not pairs
# Neither a network nor a GPU: three to six minutes on two cores.
RUN_quick = $(PYTEST) $(WATCHED) -m 'not long and $(UNMARKED)' $(LONGEST) $(OTHERS)
# The tests of the same kind that take longer, one by one.
RUN_long = $(PYTEST) $(WATCHED) -m 'long and $(UNMARKED)' $(call MARKED,long)
# The commands as users start them, also in several processes: some ten minutes.
RUN_commands = $(PYTEST) $(WATCHED) -m 'commands and not slow' $(call MARKED,commands)
# What the pages, the notebook and the gallery show: about ten minutes.
RUN_docs = $(PYTEST) --dist worksteal $(WATCHED) -m 'docs and not slow' $(call MARKED,docs)
# Quick, long and commands in one run: packages are imported, and one core waits at the end, once. The longest files first.
RUN_ci = $(PYTEST) $(WATCHED) -m 'not slow and not docs and not pairs' $(call MARKED,commands) $(LONGEST) $(OTHERS)
# Options in pairs, each row a training, a test, predictions and an export: half an hour, run by hand.
RUN_pairs = $(PYTEST) --dist load $(WATCHED) -m pairs tests/pairs
# What takes minutes, or repeats a proof for other models: an hour.
RUN_slow = $(PYTEST) -m slow
# Fifty steps of every nano recipe against stored losses; UPDATE=1 stores them: ten minutes.
RUN_losses = UPDATE=$(UPDATE) $(PYTEST) -n 0 -m slow tests/mm/train/test_stored_losses.py
# Whole trainings of three nano recipes against bands of AP and mIoU: an hour.
RUN_bands = $(PYTEST) -m slow tests/mm/train/test_bands.py
# Damaged annotations, checkpoints and odd options, EXAMPLES=1000 of each.
RUN_faults = EXAMPLES=$(EXAMPLES) $(PYTEST) -m 'slow or long' tests/faults
# What a GPU proves: all backbones, the nano recipes; and two: NCCL, SyncBN, shards.
RUN_gpus = $(BIN)/python -m pytest tests/models/test_on_gpu.py tests/mm/test_recipes_on_gpu.py && \
    $(BIN)/python -m pytest -m 'not docs' tests/tools/test_gpus.py tests/tools/test_processes.py
# The tools and nano configs on the original OpenMMLab packages, in .venv-upstream.
RUN_upstream = $(UPSTREAM)/bin/python -m pytest tests/tools/test_tools.py tests/mm tests/test_configs.py
# The same file, the same answer as of pycocotools, mmcv and others.
RUN_peers = $(PYTEST) $(WATCHED) -m 'not slow' tests/peers

test: $(if $(filter upstream,$(WHAT)),$(UPSTREAM_READY),$(READY))  ## quick tests; WHAT=long, commands, docs, ci, pairs, slow, losses, bands, faults, gpus, upstream or peers: others
	$(or $(RUN_$(WHAT)),$(error WHAT: got $(WHAT); make help lists what there is))

check: $(READY)  ## ruff: lint and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

docs: $(READY)  ## build the book into site/; to read and search it: python -m http.server -d site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

gallery: $(READY)  ## make the pictures of docs/images; it says which demo to train first
	$(BIN)/python scripts/gallery.py

zoo: $(READY)  ## write the tables of docs/model-zoo.md
	$(BIN)/python scripts/zoo.py

dist:  ## build the sdist and the wheel into dist/: half a minute, in a temporary environment
	@$(CHECK_PYTHON)
	folder=$$(mktemp -d) && trap "rm -rf $$folder" EXIT && $(PYTHON) -m venv $$folder && \
	    $$folder/bin/python $(INSTALL) build && $$folder/bin/python -m build

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
