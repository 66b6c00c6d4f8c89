# make search: from a fresh clone to a measured transformer. make test and make check prove the project itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_ALL := $(VENV)/.installed-all
SPEC ?= examples/clinic.yaml
TEST_PROCESSES ?= 2

# On Linux PyPI's torch brings gigabytes of CUDA; torch's own index has the CPU build of the same version. It is asked
# only if it answers. To have the CUDA build: make install TORCH_INDEX=
CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_INDEX ?= $(shell $(PYTHON) -c 'import sys, urllib.request; \
	sys.platform == "linux" and urllib.request.urlopen("$(CPU_INDEX)/torch/", timeout=5) \
	and print("--extra-index-url $(CPU_INDEX)")' 2>/dev/null)

.PHONY: help install install-all search test test-extras test-core doctest check lint types layers structure docs notebooks figures format clean

help:
	@echo "make install   create $(VENV) with everything that constraints.txt pins"
	@echo "make search    run $(SPEC) (another: make search SPEC=examples/own-text.yaml)"
	@echo "make test      run the tests in two processes (another number: make test TEST_PROCESSES=8)"
	@echo "make install-all   also every extra that installs from wheels, and what builds the site"
	@echo "make test-extras   run what make test skipped, with every extra; what is still skipped for want of one fails"
	@echo "make test-core     test an environment with the core dependencies alone"
	@echo "make doctest   run the examples in docstrings"
	@echo "make docs      build the site in site/, strictly: a broken link fails"
	@echo "make notebooks run the notebooks of docs/notebooks"
	@echo "make figures   rewrite sample outputs and figures in README and docs"
	@echo "make check     make lint, types, layers and structure (make -k check goes on after a fault)"
	@echo "make format    rewrite the code in the project's format"
	@echo "make clean     remove $(VENV) and caches; runs/ stays"

install: $(STAMP)

# Redone only when what is to be installed changes. chipwise and chipwise-fitting (maintainers' fits and validation) are
# installed editable.
$(STAMP): pyproject.toml fitting/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: chipwise needs Python 3.11 or newer; name one with: make install PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (about two minutes) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH_INDEX) torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[search,medical,dev]' -e ./fitting
	@touch $(STAMP)

install-all: $(STAMP_ALL)

$(STAMP_ALL): $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH_INDEX) -e '.[all,dev,docs]' -e './fitting[power]'
	@touch $(STAMP_ALL)

search: $(STAMP)
	@$(BIN)/chipwise search $(SPEC)

# Whole files are handed to the processes, slow ones first. One thread each: what is timed or summed depends on it.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p tests.plugins.extras
IN_TURNS := -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder

test: $(STAMP)
	@SKIPPED_TO=$(VENV)/skipped-tests $(PYTEST) $(IN_TURNS)

test-extras: $(STAMP_ALL)
	@test -e $(VENV)/skipped-tests || { echo "error: run make test first: it lists what it skips" >&2; exit 2; }
	@test ! -s $(VENV)/skipped-tests || EVERY_EXTRA=1 $(PYTEST) $(IN_TURNS) @$(VENV)/skipped-tests

test-core: $(STAMP)
	@$(BIN)/python -m pytest -m install tests/install

doctest: $(STAMP)
	@$(BIN)/python -m pytest --doctest-modules --ignore src/chipwise/deploy/runtimes/llama_cpp.py --ignore-glob '*_program.py' src/chipwise

docs: $(STAMP_ALL)
	@$(BIN)/python docs/scripts/reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

notebooks: $(STAMP_ALL)
	@$(BIN)/python docs/scripts/notebooks.py

figures: $(STAMP)
	@$(BIN)/python docs/scripts/figures.py
	@$(BIN)/python docs/scripts/formats.py

check: lint types layers structure

lint: $(STAMP)
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --no-cache --check .

types: $(STAMP)
	@$(BIN)/mypy

layers: $(STAMP)
	@$(BIN)/lint-imports --no-cache

structure: $(STAMP)
	@$(BIN)/python docs/scripts/structure.py --check

format: $(STAMP)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist src/*.egg-info fitting/src/*.egg-info
