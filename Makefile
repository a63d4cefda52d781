# The study's commands. Each sets up what it needs: a virtual environment in .venv with the pinned packages of requirements.lock.
# Paths are relative throughout, so that the repository may lie under a path with spaces.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/installed

.DEFAULT_GOAL := help
.PHONY: help setup study test check lint fast ui server serve scale bench lock audit clean

help:          ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 18

setup: $(READY) ## create .venv with the pinned packages (once)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 setup"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@test -e .git || test -e .dvc/config.local || printf '[core]\n    no_scm = true\n' > .dvc/config.local  # DVC works without git, too
	@touch $(READY)

study: setup   ## run the whole study of params.yaml, then print the table of arms and where the report is
	@$(BIN)/python -m flows.full_study
	@$(BIN)/python -m tasks.report --summary

test: setup    ## all tests, the slow ones too
	$(BIN)/python -m pytest

check: lint fast ## ruff, mypy, import rules, fast tests

lint: setup
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

fast: setup
	$(BIN)/python -m pytest -m "not slow"

ui: PORT = 5000
ui: setup      ## bring MLflow up to date and open it on http://127.0.0.1:5000 (PORT=...)
	@$(BIN)/python -m tasks.track
	@case "$${MLFLOW_TRACKING_URI:-}" in \
	http://*|https://*) echo "MLflow: open MLFLOW_TRACKING_URI in a browser; that server has pages of its own" ;; \
	*) echo "MLflow: http://127.0.0.1:$(PORT), Model training at the top left (Ctrl-C ends it)"; \
		export MLFLOW_BACKEND_STORE_URI="$${MLFLOW_TRACKING_URI:-sqlite:///mlruns/mlflow.db}"; unset MLFLOW_TRACKING_URI; \
		MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false DO_NOT_TRACK=true \
		exec $(BIN)/python -m mlflow ui --host 127.0.0.1 --port $(PORT) ;; \
	esac

server: PORT = 4200
server: setup  ## a Prefect server on http://127.0.0.1:4200 (PORT=...)
	@$(BIN)/python -m prefect server start --host 127.0.0.1 --port $(PORT)

serve: setup   ## offer the flows to that server, or to PREFECT_API_URL's: prefect deployment run full-study/local
	@$(BIN)/python -m flows.serve

scale: setup   ## put another parameter file in place of params.yaml: SCALE=quick, proxy-200m, ...
	@$(BIN)/python -m tasks.scale "$(SCALE)"

bench: setup   ## speed against what users would pick instead, one small table (SIZE=smoke | short | full)
	@$(BIN)/python -m bench.all --size $(or $(SIZE),short)

lock:          ## after an edit of the pins in pyproject.toml: try them in an environment of their own, write requirements.lock
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check "setuptools>=80" ".[dev]"
	build/lock/bin/python -m pip freeze --all --exclude pip --exclude telescopic-study > build/frozen
	{ head -n 1 requirements.lock; sed 's/^\(torch==[^+]*\)+.*/\1/' build/frozen; } > build/requirements.lock
	mv build/requirements.lock requirements.lock
	rm -rf build/lock build/frozen

audit:         ## known weaknesses of the pinned packages: pip-audit, in an environment of its own, asks pypi.org
	test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/python -m pip install --quiet pip-audit; }
	build/audit/bin/pip-audit --requirement requirements.lock --no-deps --disable-pip --strict

clean:         ## remove results, checkpoints, and the records of MLflow and Prefect; the caches of DVC and .venv stay
	rm -rf artifacts runs mlruns .prefect dvc_plots
