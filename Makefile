# What people do with a checkout of tidegate; `make` alone lists it. Works with any POSIX shell.

TORCH  := 2.11.0
PYTHON ?= python3
CARGO  ?= cargo
# What the CPU half of libtorch links to; with all of torch's own dependencies beside it the same build serves CUDA.
CUDA_LIBRARIES := nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85
TEST_PACKAGES  := pyarrow==26.0.1 duckdb==2.0.1
# A Python 3.12 for vLLM, which is left out of comparisons without one.
PYTHON312 ?= python3.12

# Everything goes to folders of this checkout, so pip's warnings about a shared one are noise.
export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# A libtorch of the user's own is never touched. Without one, .cargo/config.toml names the fetched one.
ifneq ($(strip $(LIBTORCH)),)
OWN_LIBTORCH := $(abspath $(LIBTORCH))
export LIBTORCH := $(OWN_LIBTORCH)
endif

# `c++` is what the build of libtorch's bindings looks for; another compiler must be named to it.
ifeq ($(filter environment command,$(firstword $(origin CXX))),)
ifeq ($(shell command -v c++),)
export CXX := $(firstword $(notdir $(shell command -v g++) $(shell command -v clang++)))
else
CXX := c++
endif
endif

# $(call version,FOLDER): the version of the libtorch in it; nothing where there is none.
version = { cat '$(1)/build-version' 2>/dev/null || sed -n "s/^__version__ = '\(.*\)'/\1/p" '$(1)/version.py' 2>/dev/null; }
fail = { echo "make: $(1)" >&2; exit 1; }

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r name what; do \
	  printf '  make %-12s %s\n' "$$name" "$$what"; done

.PHONY: tools
tools:
	@command -v $(CARGO) >/dev/null || $(call fail,no cargo: install Rust (see rust-version in Cargo.toml))
	@command -v "$(CXX)" >/dev/null || $(call fail,no C++ compiler: install g++ or clang++)
	@command -v cc >/dev/null || $(call fail,no C compiler to link with: install gcc or clang)

.PHONY: python
python:
	@command -v $(PYTHON) >/dev/null || $(call fail,no $(PYTHON): install Python 3.10 or newer)
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || $(call fail,$(PYTHON) has no pip: install it (python3-pip))

.PHONY: libtorch
ifdef OWN_LIBTORCH
libtorch: tools ## fetch libtorch into .libtorch (1.2 GB), unless LIBTORCH names one or it is there
	@found=$$($(call version,$(OWN_LIBTORCH))); case "$$found" in \
	  2.11.*) ;; \
	  "") test -d '$(OWN_LIBTORCH)/lib' || $(call fail,no libtorch in LIBTORCH=$(OWN_LIBTORCH): unset it or name a libtorch 2.11) ;; \
	  *) $(call fail,libtorch in LIBTORCH=$(OWN_LIBTORCH) is $$found: unset it or name a libtorch 2.11) ;; \
	esac
else
libtorch: tools
	@found=$$($(call version,.libtorch/torch)); case "$$found" in \
	  $(TORCH)|$(TORCH)+*) ;; \
	  *) $(MAKE) --no-print-directory fetch-libtorch ;; \
	esac
endif

# Into a temporary folder first, so that what is interrupted is never taken for whole.
.PHONY: fetch-libtorch
fetch-libtorch: python
	@rm -rf .libtorch-new
	$(PYTHON) -m pip install --quiet --target .libtorch-new --no-deps torch==$(TORCH) $(CUDA_LIBRARIES) \
	  || $(call fail,pip could not fetch torch $(TORCH))
	@rm -rf .libtorch && mv .libtorch-new .libtorch

.PHONY: demo
demo: libtorch ## train the bundled model by reinforcement learning for a minute
	$(CARGO) build --release
	$${CARGO_TARGET_DIR:-target}/release/tidegate run data/demo.toml

# What reads the rollout files from outside, for the tests of the store.
.pydeps: Makefile | python
	@rm -rf .pydeps-new
	$(PYTHON) -m pip install --quiet --target .pydeps-new $(TEST_PACKAGES) || $(call fail,pip could not fetch $(TEST_PACKAGES))
	@rm -rf .pydeps && mv .pydeps-new .pydeps && touch .pydeps

.PHONY: test
test: libtorch .pydeps ## all tests that need nothing but this machine
	$(CARGO) test --workspace

.PHONY: fuzz
fuzz: libtorch ## damage files for ten minutes a reader (FUZZ_SECONDS) and look for panics and memory without bound
	TIDEGATE_FUZZ_SECONDS=$${FUZZ_SECONDS:-600} $(CARGO) test --test fuzz -- --nocapture

# What tidegate is compared with.
.peers: benches/peers/requirements.txt | python
	@rm -rf .peers && $(PYTHON) -m venv .peers
	.peers/bin/python -m pip install --quiet -r $< || { rm -rf .peers; $(call fail,pip could not fetch what $< names); }
	@touch .peers

.peers-vllm: benches/peers/requirements-vllm.txt
	@if ! $(PYTHON312) -c 'import venv' 2>/dev/null; then \
	  echo "vLLM is left out of comparisons: no Python 3.12 here (name one: make PYTHON312=/path/to/python3.12)"; exit 0; fi; \
	rm -rf .peers-vllm && $(PYTHON312) -m venv .peers-vllm && .peers-vllm/bin/python -m pip install --quiet --no-deps -r $< \
	  || { rm -rf .peers-vllm; $(call fail,pip could not fetch what $< names); }; touch .peers-vllm

PEER_MODELS := .peers-models/tiny .peers-models/smol_f32 .peers-models/smol_bf16
.peers-models/tiny: | .peers
	.peers/bin/python benches/peers/make_tiny.py $@ || { rm -rf $@; exit 1; }
.peers-models/smol_%: | .peers
	.peers/bin/python benches/peers/fetch_smollm2.py $@ --dtype $* || { rm -rf $@; exit 1; }

.PHONY: peers
peers: .peers .peers-vllm $(PEER_MODELS) ## fetch what tidegate is compared with: transformers, TRL, vLLM, two models (12 GB)

SAVED := $(CURDIR)/target/saved
COMPARED := $(CURDIR)/target/compared
.PHONY: test-peers
test-peers: libtorch .peers .peers-models/smol_f32 .peers-models/smol_bf16 ## compare with transformers (fetches 6 GB into .peers)
	@rm -rf '$(SAVED)'
	TIDEGATE_KEEP_SAVED='$(SAVED)' $(CARGO) test --lib saved_folders
	.peers/bin/python tests/peers/check_saved.py '$(SAVED)'/*
	@rm -rf '$(COMPARED)'
	for types in f32:fp32 bf16:fp32 bf16:bf16; do \
	  .peers/bin/python tests/peers/check_model.py ask .peers-models/smol_$${types%:*} '$(COMPARED)'/$$types $${types#*:} && \
	  TIDEGATE_COMPARE='$(COMPARED)'/$$types $(CARGO) test --lib answers_for_comparison && \
	  .peers/bin/python tests/peers/check_model.py check '$(COMPARED)'/$$types || exit 1; \
	done
	.peers/bin/python -m doctest benches/peers/common.py benches/peers/roofline.py benches/peers/rows.py benches/peers/table.py

# Chromium as Debian, Fedora and others call it.
CHROMIUM ?= $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name) 2>/dev/null)))
PLAYWRIGHT := $(CURDIR)/target/playwright
.PHONY: test-page
test-page: libtorch ## look at the pages of reports in Chromium, without a window, where it and Node.js are
	@if [ -z '$(CHROMIUM)' ] || ! command -v npm >/dev/null; then \
	  echo "test-page DID NOT RUN: it needs Chromium (or CHROMIUM=/path/to/it), node and npm"; exit 0; fi; \
	npm install --silent --no-fund --no-audit --prefix '$(PLAYWRIGHT)' playwright-core@1 || exit 1; \
	TIDEGATE_CHROMIUM='$(CHROMIUM)' TIDEGATE_PLAYWRIGHT='$(PLAYWRIGHT)' $(CARGO) test --test page -- --nocapture

.PHONY: test-cuda
test-cuda: libtorch ## what only a CUDA device can show (needs libtorch with CUDA: LIBTORCH, or torch in Python)
	$(CARGO) build --release
	tests/cuda.sh $${CARGO_TARGET_DIR:-target}/release/tidegate

.PHONY: bench-gpu
bench-gpu: ## check and measure a CUDA device in six minutes, where there is one (benches/gpu.sh tells how to carry the programs there)
	benches/gpu.sh

KILLS ?= 200
.PHONY: soak
soak: libtorch ## kill and resume runs KILLS=200 times; what it has done is kept, so it can be broken off
	TIDEGATE_SOAK_KILLS=$(KILLS) $(CARGO) test --test cli soak -- --nocapture

.PHONY: bench
bench: libtorch ## measure tidegate's own parts, five to ten minutes
	$(CARGO) bench

# Broken off, it goes on with the row that it was at; ARGS="--rows decode-tiny --again" and what else compare.py --help tells.
.PHONY: bench-peers
bench-peers: libtorch peers ## measure tidegate and its peers in turn, an hour on two quiet cores, and print one table
	.peers/bin/python benches/peers/compare.py $(ARGS)

# Without cargo-deny the licences are held by tests/licences.rs; data about security holes must have been fetched.
.PHONY: deny
deny: ## licences, sources and security holes of dependencies, where cargo-deny is installed
	@if ! command -v cargo-deny >/dev/null; then echo "deny: no cargo-deny here (cargo install cargo-deny)"; exit 0; fi; \
	$(CARGO) deny --offline check licenses bans sources || exit 1; \
	if ls -d "$${CARGO_HOME:-$$HOME/.cargo}"/advisory-dbs/*/ >/dev/null 2>&1; then $(CARGO) deny --offline check advisories; \
	else echo "deny: no data about security holes here (cargo deny fetch db)"; fi

.PHONY: lint
lint: libtorch deny ## format, clippy and docs, with warnings as errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

.PHONY: clean
clean: ## remove what was built; what was fetched stays
	$(CARGO) clean
