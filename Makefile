# Every target sets up what it needs in .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := cascade_swin_nano_shapes

.PHONY: setup demo test check clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v <= (3, 12) else \
	    f"error: Python {v[0]}.{v[1]} found, 3.10 to 3.12 expected; run: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mm,test]'
	$(BIN)/python -m vitdense
	@touch $@

# Train, draw, evaluate: about ten minutes on two CPU cores. Everything lands in work_dirs/$(DEMO).
demo: $(READY)
	$(BIN)/python tools/train.py configs/$(DEMO).py
	$(BIN)/python tools/predict.py configs/$(DEMO).py work_dirs/$(DEMO) \
	    data/shapes/val/00001*.jpg --out-dir work_dirs/$(DEMO)/pictures
	$(BIN)/python tools/test.py configs/$(DEMO).py work_dirs/$(DEMO)

test: $(READY)
	$(BIN)/python -m pytest -m 'not slow'

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) *.egg-info build dist
