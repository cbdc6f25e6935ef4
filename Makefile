# make demo   installs into .venv, runs the sweep `quickstart` and builds its tables and figures
# make test   the tests, ruff and mypy
#
# Installation is under one constraints file that pins what was tested.

PYTHON ?= python3
VENV ?= .venv
RUNS ?= runs
REPORTS ?= reports
WORKERS ?= -n 2 --dist loadfile
TORCH = torch==2.13.0
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint .ci/constraints.txt

.PHONY: install demo test lint test-core test-wheel test-browser test-vllm test-slurm soak soak-slurm clean

install: $(VENV)/.installed

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "ScaleRLT needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another with make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml .ci/constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV)"
	$(PIP) $(TORCH) --editable '.[torch]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the development extra into $(VENV)"
	$(PIP) $(TORCH) --editable '.[torch,dev]'
	@touch $@

demo: $(VENV)/.installed
	$(VENV)/bin/scalerlt sweep quickstart runs_dir=$(RUNS)
	$(VENV)/bin/scalerlt report $(RUNS)/quickstart --out $(REPORTS)/quickstart

test: lint
	$(VENV)/bin/python -m pytest -q $(WORKERS) --durations=25 --durations-min=3

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Planning, launching's status and analysis in an environment that has no torch; the two ignored compare with cells.
test-core:
	$(MAKE) VENV=.venv-core .venv-core/.installed-core
	.venv-core/bin/python -m pytest -q $(WORKERS) tests/schema tests/records tests/planning tests/analysis tests/cli \
		tests/launching/test_status.py tests/launching/test_progress.py tests/test_arrows.py \
		--ignore tests/planning/test_memory_plan.py --ignore tests/planning/test_replay_plan.py

.venv-core/.installed-core: pyproject.toml .ci/constraints.txt | .venv-core/bin/python
	$(PIP) --editable . pytest pytest-timeout pytest-xdist hypothesis
	@touch $@

# The built wheel in an environment of its own, used from a folder that has its own conf/ and analysis/.
test-wheel: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -q tests/packaging --run-packaging

# The report's page, opened in a headless Chromium; skipped, with a word, where there is none.
test-browser: $(VENV)/.installed-browser
	$(VENV)/bin/python -m pytest -q tests/browser --run-browser

$(VENV)/.installed-browser: $(VENV)/.installed-dev
	$(PIP) $(TORCH) --editable '.[torch,dev,browser]'
	@touch $@

# The rollout engine vllm, with vLLM itself on a CPU; in an environment of its own, which is 2 GB large.
test-vllm: .venv-vllm/.installed-vllm
	OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest -q --run-vllm tests/vllm_engine

.venv-vllm/.installed-vllm: pyproject.toml .ci/constraints-vllm.txt
	$(MAKE) VENV=.venv-vllm .venv-vllm/bin/python
	@echo "installing into .venv-vllm"
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement .ci/constraints-vllm.txt
	.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# Sweeps on a real Slurm, with accounting and without; installed by apt where there is none, and started and stopped
# here, in a folder of its own. Most of the tests wait, so there are more workers than cores.
test-slurm: $(VENV)/.installed-dev
	.ci/slurm
	$(VENV)/bin/python -m pytest -q -n 8 tests/slurm --run-slurm --durations=10

# A sweep of 200 small cells through faults, interruptions and kills; minutes; prints its figures (docs/reliability.md).
# make soak SOAK="--seed 7 --cells 50"
soak: $(VENV)/.installed-dev
	PYTHONPATH=tests $(VENV)/bin/python -m soak.course $(SOAK)

# The same with 60 cells on a real Slurm, installed and started as by test-slurm (docs/reliability.md).
# make soak-slurm SOAK="--seed 7 --accounting"
soak-slurm: $(VENV)/.installed-dev
	.ci/slurm
	PYTHONPATH=tests $(VENV)/bin/python -m soak.jobs_course $(SOAK)

clean:
	rm -rf .venv .venv-core .venv-vllm build dist
