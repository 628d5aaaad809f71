.DEFAULT_GOAL := help
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install format lint types arch test soak attacks demo cov check bench

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

install: $(VENV)/installed  ## make .venv with everything a developer needs

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or later is needed: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo "python3 -m venv does not work here: installing Debian's python3-venv"; \
		$$(test $$(id -u) = 0 || echo sudo) sh -c 'apt-get update -q && apt-get install -y -q python3-venv' && \
		$(PYTHON) -m venv $(VENV); }
	@$(BIN)/pip install -q --upgrade 'pip>=25.1'  # --group needs it
	$(BIN)/pip install -q -c constraints.txt -e '.[cli,gateway,postgres]' --group dev
	@touch $@

format: install  ## rewrite what can be rewritten
	$(BIN)/ruff format && $(BIN)/ruff check --fix

lint: install  ## ruff, changing nothing
	$(BIN)/ruff format --check && $(BIN)/ruff check

types: install  ## pyright, strict
	$(BIN)/pyright

arch: install  ## imports flow one way
	$(BIN)/lint-imports

check: lint types arch  ## what a commit must pass beside the tests

test: install  ## set up, then all quick tests; ARGS="-k bridge" narrows
	$(BIN)/pytest -n auto $(ARGS)

soak: install  ## kills, leaks, long runs
	$(BIN)/pytest -m slow $(ARGS)

attacks: install  ## code that tries to break out of a container
	$(BIN)/pytest -m attack $(ARGS)

demo: install  ## set up, then the main job, with no key and no network
	@$(BIN)/treadle demo

cov: install  ## tests with branch coverage
	$(BIN)/coverage run -m pytest && $(BIN)/coverage report

bench: install  ## slow; prints a table, asserts nothing
	$(BIN)/python -m benchmarks
