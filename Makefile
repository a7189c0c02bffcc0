# Everything a checkout needs. `make run` and `make test` set up by themselves.
#   make run            the three services and a demo sweep; OPENCL=pocl runs it on PoCL
#   make test           tests of less than three seconds each, some minutes; ARGS='-k journal' picks some; SLOW=1 adds the slow ones
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_BENCH := $(VENV)/.installed-bench
MARKED := $(if $(SLOW),,-m "not slow")
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps
UV_COMPILE := $(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

ifdef OPENCL
export KERNALYSE_PROFILER_OPENCL_RUNTIME := $(OPENCL)
endif

# Services load a second faster from bytecode, and tests start hundreds of them.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test smoke soak bench lint format types proto lock wheel clean

help:
	@echo "make setup | run | test | smoke | soak | bench | lint | format | types | proto | lock | wheel | clean"

setup: $(INSTALLED)

run: $(INSTALLED)
	@exec $(BIN)/kernalyse up --demo $(ARGS)

# Two workers, file by file (tests/conftest.py), the long ones in front, in the order of testpaths (pyproject.toml).
test: $(INSTALLED)
	$(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder $(MARKED) $(ARGS)

# What a new user does first, in an environment of its own: make smoke PYTHON=python3.13
smoke:
	@$(MAKE) --no-print-directory test SLOW=1 VENV=.venv-$$($(PYTHON) -c 'import platform; print(platform.python_version())') \
	  ARGS="tests/smoke --numprocesses 0 $(ARGS)"

# Fuzzing, hundreds of kills, large stores, Slurm; writes what each part said to docs/soak.md. ARGS='--minutes 5 fuzz-kineto' picks parts.
soak: $(INSTALLED)
	$(BIN)/python -m tests.soak $(ARGS)

bench: $(INSTALLED) $(INSTALLED_BENCH)
	$(BIN)/python -m tests.benchmarks.run $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/buf lint proto
	$(BIN)/python proto/generate.py --check

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(INSTALLED)
	$(BIN)/mypy

proto: $(INSTALLED)
	$(BIN)/python proto/generate.py

wheel: $(INSTALLED)
	$(BIN)/python -m hatchling build --target wheel --directory dist
	cd compat && ../$(BIN)/python -m hatchling build --target wheel --directory ../dist

# pyproject.toml has the ranges; the locks have one version and the hashes of each.
lock: $(INSTALLED)
	$(PIP_INSTALL) uv
	$(UV_COMPILE) --extra all --extra postgresql --extra s3 --extra cluster --group dev --output-file requirements.lock pyproject.toml
	$(UV_COMPILE) --extra cuda --constraint requirements.lock --output-file requirements-cuda.lock pyproject.toml
	$(UV_COMPILE) --group bench --constraint requirements.lock --output-file requirements-bench.lock pyproject.toml
	$(UV_COMPILE) --extra analyzer --extra ui --extra postgresql --extra s3 --extra cluster --extra otel --constraint requirements.lock \
	  --output-file deploy/dashboard.lock pyproject.toml
	$(UV_COMPILE) --extra profiler --extra opencl --extra otel --constraint requirements.lock --output-file deploy/profiler.lock pyproject.toml
	$(UV_COMPILE) --group sbom --constraint requirements.lock --output-file deploy/sbom.lock

clean:
	rm -rf $(VENV) .venv-* dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(INSTALLED): requirements.lock requirements-cuda.lock pyproject.toml compat/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1 || echo missing)." >&2; \
	  echo "Install it (Debian, Ubuntu: apt-get install python3.11 python3.11-venv), then: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv module is missing. Install it: apt-get install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing the locked dependencies (about 2 GB the first time; a few minutes)"
	@$(PIP_INSTALL) --require-hashes --requirement requirements.lock
	@if nvidia-smi --list-gpus >/dev/null 2>&1 && nvcc --version >/dev/null 2>&1; then \
	  echo "NVIDIA GPU and CUDA toolkit found: building PyCUDA (a minute or two)"; \
	  PATH="$$(dirname "$$(readlink -f "$$(command -v nvcc)")"):$$PATH" $(PIP_INSTALL) --require-hashes --requirement requirements-cuda.lock \
	    || echo "PyCUDA could not be built; kernels will run through OpenCL. kernalyse doctor says more." >&2; \
	fi
	@$(PIP_INSTALL) --no-build-isolation --editable . --editable compat
	@touch $@

$(INSTALLED_BENCH): requirements-bench.lock $(INSTALLED)
	@$(PIP_INSTALL) --require-hashes --requirement requirements-bench.lock
	@touch $@
