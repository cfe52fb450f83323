# On a fresh Debian 12 with git and make, `make train` and `make test` do everything, from installing
# the packages on. CMake does the building; this file only saves typing.
#
#   LOCKSTEP_TORCH=/folder   use this libtorch 2.11.0 instead of fetching one
#   JOBS=4                   compilers at once (default: the cores, as far as memory reaches)
#   PREFIX=/opt/lockstep     where `make install` installs (default: /usr/local); DESTDIR is honoured
#   ARGS='-L unit'           further arguments of ctest (make test) or of the trainer (make train)

JOBS ?= $(shell tools/jobs.sh)
PREFIX ?= /usr/local
BIN := build/release/bin
RESULTS := $(CURDIR)/build/release/test-results
SOURCES = $(shell find include src apps tests examples -name '*.h' -o -name '*.cpp' 2>/dev/null)
CLANG_FORMAT ?= clang-format-14
LINT ?= /(src|apps|tests|examples)/

.PHONY: help requirements setup build train test check perf install core format lint clean FORCE
.DELETE_ON_ERROR:

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do \
	  printf '  make %-8s %s\n' "$$name" "$$what"; done

requirements:
	@tools/skips.py --requirements

setup: ## install what is missing: Debian packages, libtorch in .deps/, what the tests need
	@tools/setup.sh --tests

build: build/release/build.ninja ## build everything: programs, examples, tests (preset release)
	@tools/build.py build/release -j $(JOBS)

train: build/release/build.ninja ## train the built-in example on two emulated nodes of four ranks
	@tools/build.py build/release -j $(JOBS) lockstep lockstep-torch
	$(BIN)/lockstep run --local-nodes 2 --nproc-per-node 4 -- $(BIN)/lockstep train recipes/cats.toml $(ARGS)

# Two at a time, but those with ranks, services or deadlines alone (cmake/LockstepTest.cmake).
test: setup requirements build ## build everything and run every test
	@rm -rf $(RESULTS) && mkdir -p $(RESULTS)
	ctest --preset release -j 2 --output-on-failure --output-junit $(RESULTS)/ctest.xml \
	  --test-output-size-passed 1000000 $(ARGS); code=$$?; tools/skips.py --brief; exit $$code

check: build/release/build.ninja ## build and run what a change most likely breaks, in a minute (label check)
	@tools/build.py build/release -j $(JOBS) check_tests
	ctest --preset release -C check -L '^check$$' -j 2 --output-on-failure $(ARGS)

perf: build/release/build.ninja ## hold the published ratios against what this machine measures, in minutes
	@tools/build.py build/release -j $(JOBS) lockstep lockstep-torch lockstep-bench
	bench/perf_gate.py $(BIN)/lockstep

install: build/release/build.ninja ## install programs, headers and archives into PREFIX (docs/package.md)
	@tools/build.py build/release -j $(JOBS) lockstep lockstep-torch lockstep-bench lockstep-explain
	cmake --install build/release --prefix $(PREFIX)

core: build/core/build.ninja ## build and test only the areas that need no libtorch
	@tools/build.py build/core -j $(JOBS)
	ctest --preset core -j 2 --output-on-failure $(ARGS)

format: ## rewrite the sources in the format of .clang-format
	@$(call need,$(CLANG_FORMAT),clang-format-14)
	$(CLANG_FORMAT) -i $(SOURCES)

lint: build/lint/compile_commands.json ## check format, tree and bugs (LINT=regex: which files clang-tidy reads)
	@$(call need,$(CLANG_FORMAT),clang-format-14)
	@$(call need,run-clang-tidy,clang-tidy)
	$(CLANG_FORMAT) --dry-run -Werror $(SOURCES)
	tools/check_tree.py --targets build/lint/targets.txt
	run-clang-tidy -quiet -j $(JOBS) -p build/lint '$(LINT)'

clean: ## remove what was built (libtorch in .deps/ stays)
	rm -rf build

# $(call need,program,package)
need = command -v $(1) >/dev/null || { echo "make: $(1) is not here: apt-get install $(2)" >&2; exit 1; }

# Set-up is cheap when nothing is missing, so it runs each time; it touches .setup/torch only when
# another libtorch is to be used, and only then is the build configured anew.
.setup/torch: FORCE
	@tools/setup.sh

build/release/build.ninja: .setup/torch CMakePresets.json
	cmake --preset release -DLOCKSTEP_TORCH="$$(cat .setup/torch)"

build/core/build.ninja: CMakePresets.json
	@tools/setup.sh --no-torch
	cmake --preset core

# The preset dev without precompiled headers: those are g++'s, and clang-tidy cannot read them.
build/lint/compile_commands.json: .setup/torch CMakePresets.json FORCE
	@cmake --preset dev -B build/lint -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
	  -DLOCKSTEP_TORCH="$$(cat .setup/torch)" >/dev/null
