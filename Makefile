# Everything runs in .venv, which `make setup` builds from the pinned constraints.txt.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
TYPED := build/typed

.PHONY: setup demo test lint types bench clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: setup
	@echo "A small GPT, trained on one device and in parallel: does it train the same?"
	$(BIN)/pytest docs/examples/test_gpt.py --trainsafe-sweep tp=1,2 cp=1,2 --trainsafe-launcher torchrun
	@echo
	@echo "The same with a real bug planted. This test must fail, and say why:"
	@$(BIN)/pytest docs/examples/test_gpt_with_bug.py --trainsafe-launcher torchrun --trainsafe-localize 120; test $$? -eq 1

# A process for each core, which share one budget of ranks; one that is done takes over tests.
test: setup lint types
	$(BIN)/pytest -n logical --maxprocesses 8 --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy finds modules by their folders, so the package is shown to it as it will be installed.
types: setup
	@rm -rf $(TYPED) && mkdir -p $(TYPED)/pytest_trainsafe
	@ln -s $(CURDIR)/pytest_trainsafe/* $(CURDIR)/fixtures $(CURDIR)/invariants \
		$(CURDIR)/reference_models $(TYPED)/pytest_trainsafe
	cd $(TYPED) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml -p pytest_trainsafe

# `make bench ARGS=--quick` for a first look.
bench: setup
	@status=0; for script in benchmarks/bench_*.py; do \
		echo "== $$script"; $(BIN)/python $$script $(ARGS) || status=1; done; exit $$status

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
