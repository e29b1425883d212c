# Each target does all its own set-up, in .venv, and does nothing twice.
#   make demo    the product on a small generated run, from nothing
#   make test    tests (SLOW=1 adds the slow ones; PART=doctor: only tests/unit/doctor and the
#                integration tests with "doctor" in their file name)
#   make check   ruff, basedpyright, import-linter, deptry, generated docs up to date, pins resolve
#   make fix     format, fix what ruff can fix, write generated docs again
#   make docs    the documentation site, into site/
#   make lock    constraints.txt, from pyproject.toml and constraints.in (UPGRADE=1: newest versions)
#   make zoo     foreign-shaped scripts bare and under the doctor (PUBLIC=FOLDER: public checkouts)
#   make drill   real commands under faults; counts add up in benchmarks/results (MINUTES=5 a part,
#                ONLY=kills|"hostile inputs"|faults|soak)
#   make devkit  nuscenes-devkit beside us, for the test that it reads our generated world

# TORCH_INDEX=... takes torch from another index, for a build without CUDA.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The demo needs less than the tests: stamps of what is installed.
DEMO_READY := $(VENV)/.demo-ready
READY := $(VENV)/.ready
UV_BIN := .venv-uv/bin

.PHONY: setup demo test check fix docs lock zoo drill devkit clean

setup: $(READY)

$(DEMO_READY): pyproject.toml constraints.txt
	@$(PYTHON) scripts/set_up.py $(VENV) torch,train
	@touch $@

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) scripts/set_up.py $(VENV) torch,train,bev,reid,lowbit,tensorboard,dev
	@touch $(DEMO_READY) $@

demo: $(DEMO_READY)
	$(BIN)/pitstop demo

# Bytecode is written even where the environment says not to: else every process that a test
# starts compiles the package again.
test: export PYTHONDONTWRITEBYTECODE :=
# Tests marked quiet compare times or expect a verdict: they run one at a time, after the others.
test: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal $(if $(SLOW),-m "not gpu and not quiet" $(SLOWEST)) $(TESTS)
	$(if $(SLOW),$(BIN)/pytest -m "quiet and not gpu" $(SLOWEST) $(TESTS) $(NONE_IS_FINE))

# What a slow run spends its time on stands at its end.
SLOWEST = --durations=60 --durations-min=4

TESTS = $(if $(PART),$(or $(wildcard tests/unit/$(PART) tests/integration/test_*$(PART)*.py),$(error no tests of PART=$(PART))))
# pytest ends with 5 where nothing was selected: not every part has quiet tests.
NONE_IS_FINE = $(if $(PART),|| [ $$? -eq 5 ])

check: $(READY) $(UV_BIN)/uv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry src
	$(BIN)/python scripts/make_config_docs.py --check
	$(BIN)/python scripts/make_api_docs.py --check
	$(BIN)/python scripts/make_figures.py --check
	$(UV_BIN)/python scripts/lock.py --check

fix: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/python scripts/make_config_docs.py
	$(BIN)/python scripts/make_api_docs.py
	$(BIN)/python scripts/make_figures.py

docs: $(READY)
	$(BIN)/zensical build --clean

# uv stands beside the environment: pins that cannot be installed must not keep it away.
lock: $(UV_BIN)/uv
	$(UV_BIN)/python scripts/lock.py $(if $(UPGRADE),--upgrade)

$(UV_BIN)/uv:
	$(PYTHON) -m venv .venv-uv
	$(UV_BIN)/python -m pip install --quiet --disable-pip-version-check 'uv==0.13.7'

# PUBLIC: a folder of checkouts named OWNER+NAME; PYTHON_OF_SCRIPTS: an interpreter that has what they import.
zoo: $(READY)
	$(BIN)/python -m tests.zoo.run $(if $(PUBLIC),--public $(PUBLIC)) $(if $(PYTHON_OF_SCRIPTS),--python $(PYTHON_OF_SCRIPTS)) $(if $(ONLY),--only $(ONLY)) --json $(or $(JSON),zoo.json)

drill: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.drill.run --minutes $(or $(MINUTES),5) $(if $(ONLY),--only "$(ONLY)")
	$(BIN)/python scripts/make_figures.py

# nuscenes-devkit wants an older numpy than we test with, so it has a place of its own.
devkit: .venv-devkit/.ready

.venv-devkit/.ready:
	$(PYTHON) -m venv .venv-devkit
	.venv-devkit/bin/python -m pip install --quiet --disable-pip-version-check 'nuscenes-devkit==1.2.0'
	@touch $@

clean:
	rm -rf $(VENV) .venv-devkit .venv-uv site .pytest_cache .ruff_cache .hypothesis .import_linter_cache
