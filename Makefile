# Each target does all its own set-up, in .venv, and does nothing twice.
#   make demo    the product on a small generated run, from nothing
#   make test    checks and tests (SLOW=1 adds the slow ones)
#   make check   ruff, basedpyright, import-linter, deptry, generated docs up to date
#   make fix     format, mend what ruff can mend, write generated docs again
#   make docs    the documentation site, into site/
#   make devkit  nuscenes-devkit beside us, for the test that it reads our generated world

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test check fix docs devkit clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pitstop needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; run: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,reid,lowbit,tensorboard,dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/pitstop demo

# Slow tests measure, kill and compile: they run one at a time, after the others.
test: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal
	$(if $(SLOW),$(BIN)/pytest -m "slow and not gpu")

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry src
	$(BIN)/python scripts/make_config_docs.py --check

fix: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/python scripts/make_config_docs.py

docs: $(READY)
	$(BIN)/zensical build --clean

# nuscenes-devkit wants an older numpy than we test with, so it has a place of its own.
devkit: .venv-devkit/.ready

.venv-devkit/.ready:
	$(PYTHON) -m venv .venv-devkit
	.venv-devkit/bin/python -m pip install --quiet --disable-pip-version-check 'nuscenes-devkit==1.2.0'
	@touch $@

clean:
	rm -rf $(VENV) .venv-devkit site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
