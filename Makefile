# Everything a developer runs. `make demo` and `make test` do all the set-up on a fresh machine.
#
#   PYTHON=python3.12             interpreter to make .venv from
#   LINS_TORCH=torch==2.14.1      another torch
#   LINS_PIP_ARGS="--index-url https://download.pytorch.org/whl/cpu"   where pip finds torch
#   JOBS=4                        compilers and tests at once
#   ARGS="-k layout"              passed on by demo, test-py, bench
#   CASES=10000                   how many make fuzz runs

PYTHON ?= python3
LINS_TORCH ?= torch==2.13.0
LINS_PIP_ARGS ?=
export PYTHON LINS_TORCH LINS_PIP_ARGS

VENV := .venv/bin
CTEST := OMP_NUM_THREADS=1 ctest --test-dir build -j$(or $(JOBS),2) --output-on-failure
PYTEST := OMP_NUM_THREADS=1 $(VENV)/python -m pytest tests/python

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build demo test test-cpp test-py exhaustive fuzz lint format cuda gpu-bundle gpu-check sanitize asan tsan bench clean distclean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup:  ## install what is missing: Debian packages, and .venv
	@scripts/setup.sh

build: setup  ## build libraries, extension modules and tests into build/
	@scripts/build.sh build all

demo: setup  ## run the demonstration
	@scripts/build.sh build python/all
	@$(VENV)/python -m lins demo $(ARGS)

test: build  ## run all tests, C++ and Python
	@$(CTEST)
	@$(PYTEST)

test-cpp: build  ## run the C++ tests
	@$(CTEST)

test-py: build  ## run the Python tests; ARGS="-k layout" picks some
	@$(PYTEST) $(ARGS)

exhaustive: build  ## run every pair of layouts of small tensors; minutes
	@OMP_NUM_THREADS=1 LINS_EXHAUSTIVE=1 build/tests/proofs_test --gtest_filter='*Exhaustive*'

fuzz: build  ## run CASES=1000000 random redistributions from fresh seeds; minutes
	@OMP_NUM_THREADS=1 LINS_FUZZ=$(or $(CASES),1000000) build/tests/proofs_test --gtest_filter='Random*'

lint: setup  ## check style: ruff and clang-format
	@scripts/lint.sh check

format: setup  ## bring all files into style
	@scripts/lint.sh fix

cuda:  ## build for CUDA in an environment of its own, and run what needs no GPU; no GPU needed
	@scripts/cuda.sh

gpu-bundle: setup  ## put what gpu-check needs into gpu-bundle/, for a machine without network
	@scripts/gpu_bundle.sh

gpu-check:  ## on a machine with a GPU: kernels, bandwidth, plans, memory, a step beside FSDP2
	@scripts/gpu_check.sh

sanitize: asan tsan  ## run the C++ tests under Address-, UndefinedBehavior- and ThreadSanitizer

asan: setup  ## the first two of them, all folders
	@scripts/sanitize.sh asan

tsan: setup  ## the third, on the folders that start threads
	@scripts/sanitize.sh tsan

bench: setup  ## build and run the C++ benchmarks
	@OMP_NUM_THREADS=1 scripts/bench.sh $(ARGS)

clean:  ## remove what was built; .venv stays
	rm -rf build build-* dist python/lins/*.so

distclean: clean  ## remove .venv and results as well
	rm -rf .venv .venv-cuda gpu-bundle bench-results .pytest_cache .hypothesis .ruff_cache
