# Every command of the project. `make` lists them; CONTRIBUTING.md explains them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
# More arguments for CMake, such as -DTORCHDION_WERROR=ON; setup.py reads them too.
CMAKE_ARGS ?=
export CMAKE_ARGS
# Flags of examples/gpt/train.py.
TRAIN ?= --rank-fraction 0.25 --nesterov --residual --no-error-feedback --resume --against torch_adamw
# A study, and flags of examples/gpt/compare.py.
COMPARE ?= small
# Arguments of pytest, such as PYTEST="-k lion".
PYTEST ?=
# Arguments of ctest: all but what `make test-long` runs.
CTEST ?= --label-exclude long
# ON: the sanitizers see the CUDA operations too, run by the host.
EMULATION ?= OFF

PY := .venv/bin/python
FORMAT := .venv/bin/clang-format
TREE := build/package
ASAN := build/asan
FUZZ := build/fuzz
FUZZ_SECONDS ?= 10
# Random cases of `make test-long`.
CASES ?= 5000
BEGAN := $(shell date +%s)
LAUNCHER := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
JOBS := $(if $(MAX_JOBS),-j$(MAX_JOBS))
SOURCES := $(shell find csrc include cmake -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cmake' -o -name '*.in')
SCRIPTS := .ci/run benchmarks/gpu/run.sh examples/clusters/slurm.sh $(wildcard benchmarks/gpu/stand_ins/*)
CXX_FILES = $(shell find csrc include tests/cpp tests/consumer tests/fuzz tests/new_algorithm examples -name '*.cpp' -o -name '*.h' -o -name '*.cu')

.PHONY: help
help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

# Freed memory stays with the process: else Linux clears its pages anew for each test.
KEEP_MEMORY := MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824

# A tool that is missing is named in one sentence, with the package that brings it.
define require
	@command -v $(1) > /dev/null || { echo "torchdion needs $(1), which was not found: sudo apt-get install $(2)" >&2; exit 1; }
endef

.PHONY: tools
tools:
	$(call require,$(PYTHON),python3)
	$(call require,g++,g++)
	$(call require,cmake,cmake)
	$(call require,ninja,ninja-build)

.PHONY: gtest
gtest: tools
	@g++ -E -x c++ -include gtest/gtest.h /dev/null > /dev/null 2>&1 \
	  || { echo "The C++ tests need GoogleTest, which was not found: sudo apt-get install libgtest-dev" >&2; exit 1; }

.venv/.installed: requirements-dev.txt | tools
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "torchdion needs Python 3.10 or newer: make PYTHON=python3.12, say" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null \
	  || { echo "torchdion needs Python's venv module, which was not found: sudo apt-get install python3-venv" >&2; exit 1; }
	@test -e "$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" \
	  || { echo "torchdion needs Python's headers, which were not found: sudo apt-get install python3-dev" >&2; exit 1; }
	@echo "Installing PyTorch and the tools of requirements-dev.txt into .venv"
	@$(PYTHON) -m venv .venv
	@{ $(PY) -m pip install --quiet --disable-pip-version-check $$(grep '^uv==' requirements-dev.txt) && \
	  .venv/bin/uv pip install --quiet --python $(PY) --compile-bytecode -r requirements-dev.txt; } \
	  || { echo "uv could not install them; now pip tries" >&2; \
	    $(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt; }
	@touch $@

.PHONY: env
env: .venv/.installed  ## the virtual environment in .venv

$(TREE)/.installed: .venv/.installed $(SOURCES) CMakeLists.txt setup.py pyproject.toml | tools
	@echo "Building torchdion (a few minutes the first time)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

.PHONY: build
build: $(TREE)/.installed  ## env, and the package in editable mode

.PHONY: train
train: build  ## build, and train the GPT example with Dion and AdamW, or go on; TRAIN="--overwrite ..." for other flags
	$(PY) examples/gpt/train.py $(TRAIN)

.PHONY: compare
compare: build  ## train a very small GPT with every optimizer and report, eleven minutes; COMPARE="paper-tiny ..."
	$(PY) examples/gpt/compare.py $(COMPARE)

.PHONY: test
test: test-cpp test-python test-example  ## build, and every test but those of test-long

.PHONY: test-cpp
test-cpp: build gtest  ## the C++ tests
	@cmake -S . -B $(TREE) -DTORCHDION_TESTS=ON $(CMAKE_ARGS) > /dev/null
	@cmake --build $(TREE) $(JOBS)
	@ctest --test-dir $(TREE) -j2 $(CTEST) --output-on-failure --output-junit results/ctest.xml

.PHONY: test-sanitizers
test-sanitizers: .venv/.installed gtest  ## the C++ tests under the address and undefined-behaviour sanitizers
	@cmake -S . -B $(ASAN) -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DTORCHDION_PYTHON=OFF -DTORCHDION_TESTS=ON \
	  -DTORCHDION_CUDA=OFF -DTORCHDION_WERROR=ON -DTORCHDION_SANITIZE=address,undefined -DTORCHDION_EMULATION=$(EMULATION) \
	  -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=40 > /dev/null
	@cmake --build $(ASAN) $(JOBS)
	@ctest --test-dir $(ASAN) -j2 $(CTEST) --output-on-failure --output-junit results/ctest.xml

# libFuzzer comes with clang; where it is missing, the other tests are run without it.
.PHONY: test-fuzz
test-fuzz: build  ## checkpoints of random damage, read under ASan for FUZZ_SECONDS=10; needs clang, libclang-rt-dev
	@if ! echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }' \
	  | clang++ -fsanitize=fuzzer,address -x c++ -o /dev/null - 2> /dev/null; then \
	  echo "test-fuzz is left out: it needs clang++ with libFuzzer (sudo apt-get install clang libclang-rt-dev)"; \
	else \
	  cmake -S tests/fuzz -B $(FUZZ) -G Ninja -DCMAKE_CXX_COMPILER=clang++ \
	    -DCMAKE_PREFIX_PATH=$(CURDIR)/python/torchdion/share/cmake $(LAUNCHER) > /dev/null; \
	  cmake --build $(FUZZ) $(JOBS); \
	  mkdir -p $(FUZZ)/corpus; \
	  OMP_NUM_THREADS=1 $(FUZZ)/fuzz_state_dict -max_total_time=$(FUZZ_SECONDS) -max_len=512 -len_control=0 \
	    -rss_limit_mb=0 -print_final_stats=1 -verbosity=0 -artifact_prefix=$(FUZZ)/ $(FUZZ)/corpus; \
	fi

# What `make test` leaves out, or does less often, for the sake of its time.
.PHONY: test-long
test-long: build  ## tests that are marked long, the sanitizers, CASES=5000 random cases, 30 kills, the oldest torch, ten minutes of fuzz
	@$(PY) -m pytest -n 2 --no-loadscope-reorder -m long --durations=10 tests/python $(PYTEST)
	@$(PY) -m pytest --durations=0 --durations-min=1 --cases $(CASES) --kills 30 tests/python/units/test_exotic.py \
	  tests/python/oracle/test_differential.py tests/python/law/test_random_trainings.py tests/python/ranks/test_kills.py \
	  $(PYTEST)
	@$(MAKE) test-cpp CTEST="--label-regex long"
	@$(MAKE) test-sanitizers CTEST= EMULATION=ON
	@$(MAKE) test-versions VERSIONS=2.10
	@$(MAKE) test-fuzz FUZZ_SECONDS=600
	@echo "test-long took $$(($$(date +%s) - $(BEGAN))) s"

.PHONY: test-python
test-python: build  ## the Python tests and the examples in docstrings; PYTEST="arguments of pytest"
	@$(KEEP_MEMORY) $(PY) -m pytest -n 2 --no-loadscope-reorder --doctest-modules --junitxml=build/results/pytest.xml tests/python python/torchdion $(PYTEST)

.PHONY: test-example
test-example: build  ## five steps of the GPT example
	@$(PY) examples/gpt/train.py --overwrite --run build/example --layers 1 --d-model 32 --heads 2 --context 32 \
	  --batch 2 --steps 5 --val-sequences 2 --sample-length 20

.PHONY: docs
docs: build  ## the documentation site, in build/docs/html; needs doxygen
	$(call require,doxygen,doxygen)
	@mkdir -p build/docs
	@doxygen docs/Doxyfile
	@$(PY) -m sphinx --fail-on-warning --keep-going --fresh-env --quiet -c docs . build/docs/html
	@$(PY) docs/site/check_site.py

.PHONY: wheel
wheel: .venv/.installed | tools  ## a wheel for other machines, tried at another path, in dist/
	@$(PY) release/make_wheel.py

# VERSIONS="2.10 2.15/3.13": under these alone, of which the second has another Python.
.PHONY: test-versions
test-versions: .venv/.installed | tools  ## build and test under each minor version of torch; VERSIONS="2.10 2.15/3.13"
	@$(PY) release/try_versions.py $(VERSIONS)

.PHONY: bench
bench: build  ## time the optimizer's step against its peers'
	$(PY) benchmarks/step.py
	$(PY) benchmarks/overhead.py

.PHONY: lint
lint: .venv/.installed  ## layout, types, the rules of coroutines and includes and, where shellcheck is installed, scripts
	@status=0; \
	$(FORMAT) --dry-run --Werror $(CXX_FILES) || status=1; \
	$(PY) -m ruff check . || status=1; \
	$(PY) -m ruff format --check . || status=1; \
	$(PY) -m mypy || status=1; \
	$(PY) tests/check_coroutines.py || status=1; \
	$(PY) tests/check_includes.py || status=1; \
	if command -v shellcheck > /dev/null; then shellcheck $(SCRIPTS) || status=1; fi; \
	exit $$status

.PHONY: format
format: .venv/.installed  ## lay out all code
	@$(FORMAT) -i $(CXX_FILES)
	@$(PY) -m ruff check --fix-only .
	@$(PY) -m ruff format .

.PHONY: clean
clean:  ## remove what was built, but not .venv and runs
	rm -rf build dist python/torchdion.egg-info python/torchdion/{lib,include,share,_build.json} python/torchdion/*.so
