# Everything runs in a virtual environment of its own, set up on first use. `make help` lists what there is.

PYTHON ?= python3
VENV ?= .venv
# The release that Tightfit is tested with. TORCH=torch takes the newest one, and any other
# requirement that pip understands takes the build that your GPU needs.
TORCH ?= torch==2.13.0
CONFIG ?= search.yaml
KILLS ?= 50
# Test files that run side by side.
JOBS ?= auto

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test check lab soak bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' Makefile
	@echo "  Variables: TORCH=$(TORCH) PYTHON=$(PYTHON) VENV=$(VENV) CONFIG=$(CONFIG) KILLS=$(KILLS) JOBS=$(JOBS)"

setup: $(VENV)/.run ## install Tightfit and what it needs

demo: $(VENV)/.run ## search a plan for the default model and end with a verdict
	$(BIN)/tightfit run $(CONFIG)

test: check ## lint, check types and run every test (ARGS goes to pytest)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --maxprocesses 4 --dist loadfile $(ARGS)

check: $(VENV)/.dev ## lint and check types only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p tightfit

lab: $(VENV)/.run ## train the small lab model (about ten minutes, then cached)
	$(BIN)/python -m tightfit.workers.lab

soak: $(VENV)/.run ## kill runs again and again; they must end as undisturbed ones
	$(BIN)/python benchmarks/soak.py --kills $(KILLS)

bench: $(if $(NAME),$(VENV)/.run) ## list the benchmarks, or run one: make bench NAME=solvers
ifdef NAME
	$(BIN)/python benchmarks/$(NAME).py
else
	@for file in benchmarks/*.py; do \
		[ -e "$$file" ] || { echo "There are no benchmarks yet."; break; }; \
		printf '  make bench NAME=%-14s %s\n' "$$(basename "$$file" .py)" "$$(sed -n '1s/"""//g;1p' "$$file")"; \
	done
endif

clean: ## remove the environment, caches and build leftovers; runs/ stays
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find $(CURDIR) -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last, so an interrupted setup starts again where pip left off.
$(VENV)/.run: pyproject.toml
	@echo "==> Setting up $(VENV) with $(TORCH) (a few minutes, once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tightfit needs Python 3.11 or newer.")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) 'setuptools>=77' '$(TORCH)'
	@$(PIP) --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "==> Adding the development tools"
	@$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@
