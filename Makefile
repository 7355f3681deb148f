# Two commands show and check everything: `make demo` and `make test`. Both set up .venv first, once.
# The first Python of this list that is at least 3.11; make PYTHON=/path/to/python uses another.
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
DEMO := runs/demo

.PHONY: setup demo test test-all bench docs lint resolve audit format clean help

help:
	@echo "make demo    train on the embedded digits, evaluate, export; show the shipped encoder"
	@echo "make test    run the tests"
	@echo "make test-all  also run the slow tests: kills, lost workers, full disks (30 minutes more)"
	@echo "make bench   compare speed with PyTorch and others (50 minutes; installs PyTorch)"
	@echo "             make bench BENCH=--sections=pipeline,limit measures a part"
	@echo "make docs    build the documentation as a site that opens from disk: site/index.html"
	@echo "make setup   create $(VENV) and install tfvmf in it (the others do it for you)"
	@echo "make lint    ruff, mypy, import-linter"
	@echo "make resolve check that the requirements resolve on Python 3.11, 3.12 and 3.13; installs nothing"
	@echo "make audit   look up known vulnerabilities of the installed packages; asks PyPI"
	@echo "make format  ruff format, and its automatic fixes"
	@echo "make clean   remove $(VENV) and caches (runs/ stays)"

setup: $(VENV)/.installed

# The marker is newer than what it was made from: a second call installs nothing.
$(VENV)/.installed: setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "no Python of version 3.11 or later found: make PYTHON=/path/to/python"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (about 2 minutes, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: setup
	$(BIN)/tfvmf train --workdir=$(DEMO)
	$(BIN)/tfvmf evaluate $(DEMO)
	$(BIN)/tfvmf export $(DEMO) --output=$(DEMO)/export --with_probe
ifneq ($(wildcard tfvmf/shipped/cifar10),) # the trained encoder that comes with the package
	$(BIN)/python examples/show_certainty.py cifar10 --output=$(DEMO)/certainty.png
endif

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile

# PyTorch is only used for comparisons.
$(VENV)/.installed-bench: $(VENV)/.installed
	@echo "installing PyTorch into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	@touch $@

# Only the site needs MkDocs.
$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "installing MkDocs into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@touch $@

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "site: site/index.html"

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks.bench $(BENCH)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

resolve: setup
	$(BIN)/python tools/resolve.py

audit: setup
	@$(BIN)/python -c 'import pip_audit' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip-audit || \
		{ echo "audit: pip-audit cannot be installed: is there a network?" >&2; exit 2; }
	@$(BIN)/python tools/audit.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
