# make demo    build, then run the main job and print the ladder
# make test    everything that CI checks
# make help    the rest
#
# Every target installs what it needs and is quick when nothing changed. Knobs:
#   JOBS=4            compilers at one time
#   PYTHON=python3.12 interpreter for the virtual environment
#   TORCH_INDEX=URL   where the tests take torch from; PyTorch's CPU index spares gigabytes where PyPI has only the CUDA build
#   BENCH=pixels      one benchmark group instead of all
#   HEIF=1            an engine that also decodes HEIC and AVIF, with libheif
#   FUZZ="--seconds 30 jpeg"  what `make fuzz` hands to tools/fuzz.py (see its --help)
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

JOBS ?= $(shell nproc)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
TORCH_INDEX ?=
BENCH ?=
FUZZ ?=
HEIF ?=
# CMake reads it when a build folder is made; each compile is then looked up before it is run.
export CMAKE_CXX_COMPILER_LAUNCHER := $(shell command -v ccache)
# Paths below the checkout do not count, so a clone next door finds what this one compiled.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CTEST_PARALLEL_LEVEL := $(JOBS)

CMAKE_FILES := CMakeLists.txt $(shell find cmake core bindings -name '*.cmake' -o -name CMakeLists.txt)
CORE_FILES := $(shell find core bindings -name '*.h' -o -name '*.cc' -o -name '*.def' -o -name '*.inc')
CXX_FILES = $$(find core bindings bench fuzz -name '*.h' -o -name '*.cc')
SUITES := lint test-cpp test-python test-asan test-tsan

.PHONY: build demo test $(SUITES) bench soak fuzz stubs docs format wheel clean help
build: $(STAMPS)/build  ## a working .venv/bin/stoker

demo: build  ## the ladder, from a data set that it makes
	$(BIN)/stoker demo

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

# ---- installing

build/stamps/system-%: tools/setup.sh
	tools/setup.sh $*
	mkdir -p build/stamps && touch $@

$(STAMPS)/venv: | build/stamps/system-build
	[ -x $(BIN)/python ] || "$$(tools/setup.sh python)" -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/demo: $(STAMPS)/venv requirements/build.txt requirements/demo.txt
	@echo "build: Python packages"
	$(PIP) install -r requirements/demo.txt
	touch $@

$(STAMPS)/test: $(STAMPS)/demo requirements/test.txt | build/stamps/system-test
	@echo "build: Python packages for the tests"
	$(PIP) install -r requirements/test.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	touch $@

$(STAMPS)/bench: $(STAMPS)/test requirements/bench.txt | build/stamps/system-bench
	@echo "build: Python packages for the benchmarks"
	$(PIP) install -r requirements/bench.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	touch $@

# One of the two: changing the option builds anew.
$(STAMPS)/heif-on: $(STAMPS)/venv | build/stamps/system-heif
	rm -f $(STAMPS)/heif-off && touch $@

$(STAMPS)/heif-off: $(STAMPS)/venv
	rm -f $(STAMPS)/heif-on && touch $@

# The build folder stays, so only what changed is compiled; a changed Python file needs no new install.
$(STAMPS)/build: $(STAMPS)/demo $(STAMPS)/heif-$(if $(HEIF),on,off) pyproject.toml $(CMAKE_FILES) $(CORE_FILES)
	@echo "build: the engine, with $(JOBS) compilers (the first time takes minutes)"
	$(PIP) install --no-deps --no-build-isolation --editable . --config-settings=cmake.define.STOKER_HEIF=$(if $(HEIF),ON,OFF)
	touch $@

# ---- checking

test: $(STAMPS)/build $(STAMPS)/test  ## all suites below
	@failed=""; \
	for suite in $(SUITES); do \
	  echo "==== $$suite"; start=$$SECONDS; \
	  $(MAKE) $$suite || failed="$$failed $$suite"; \
	  echo "==== $$suite: $$((SECONDS - start)) s"; \
	done; \
	if [ -n "$$failed" ]; then echo "==== FAILED:$$failed"; exit 1; fi; \
	echo "==== all suites passed: $(SUITES)"

lint: $(STAMPS)/test  ## formatting, linting, types, the include table
	@failed=0; check() { echo "lint: $$1"; "$$@" || failed=1; }; \
	check clang-format-14 --dry-run -Werror $(CXX_FILES); \
	check $(BIN)/ruff format --check --quiet .; \
	check $(BIN)/ruff check --quiet .; \
	check $(BIN)/mypy --no-error-summary; \
	check $(BIN)/python tools/check_includes.py; \
	exit $$failed

test-cpp: $(STAMPS)/build $(STAMPS)/test  ## C++ tests, as shipped
	cmake --preset release -D Python_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING
	cmake --build --preset release
	ctest --preset release

test-python: $(STAMPS)/build $(STAMPS)/test  ## Python tests, golden comparisons, documentation
	$(BIN)/python -m pytest

test-asan: $(STAMPS)/test  ## all C++ with Clang and -Wthread-safety; its tests under ASan and UBSan, each fuzz target for a second
	cmake --preset asan --log-level=WARNING -D Python_EXECUTABLE=$(CURDIR)/$(BIN)/python
	cmake --build --preset asan
	ctest --preset asan

test-tsan: $(STAMPS)/test  ## C++ tests of what runs in threads, under ThreadSanitizer
	cmake --preset tsan --log-level=WARNING
	cmake --build --preset tsan
	ctest --preset tsan

soak: $(STAMPS)/build $(STAMPS)/test  ## long proofs: minutes each
	STOKER_SOAK=1 $(BIN)/python -m pytest -m soak --timeout 1800
	cmake --preset release -D Python_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING
	cmake --build --preset release --target source_test
	STOKER_FAULTY_REQUESTS=100000 build/release/core/source/source_test --gtest_filter='*UnderRandomFaults*'
	$(MAKE) fuzz FUZZ="--seconds 60"

fuzz: $(STAMPS)/test  ## hunt for inputs that break a parser, 600 CPU seconds for each; FUZZ="--seconds 30 jpeg" for less
	cmake --preset fuzz --log-level=WARNING
	cmake --build --preset fuzz
	$(BIN)/python tools/fuzz.py $(FUZZ)

bench: $(STAMPS)/build $(STAMPS)/bench  ## benchmarks; BENCH=pixels for one group
	cmake --preset release -D Python_EXECUTABLE=$(CURDIR)/$(BIN)/python --log-level=WARNING
	cmake --build --preset release --target bench/all
	STOKER_BENCH_DIR=$(CURDIR)/build/release/bench $(BIN)/python bench/run.py $(BENCH)

# ---- making files

stubs: $(STAMPS)/build  ## python/stoker/_core.pyi from the extension
	$(BIN)/python tools/make_stubs.py

docs: $(STAMPS)/build  ## docs/errors.md from the engine's own list, docs/robustness.md from the tests' case markers
	$(BIN)/python tools/errors_doc.py
	$(BIN)/python tools/robustness_doc.py

format: $(STAMPS)/test  ## format C++ and Python
	clang-format-14 -i $(CXX_FILES)
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

wheel: $(STAMPS)/demo  ## dist/*.whl
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

clean:  ## remove what was built, keep the installed packages
	rm -rf build dist $(STAMPS)/build
