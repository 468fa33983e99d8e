# `make help` lists the targets. Everything happens inside .venv; nothing is installed system-wide.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# OpenEnv's two distributions own one package and can't share an environment, so its example has one of its own.
OPENENV := .venv-openenv
OPENENV_STAMP := $(OPENENV)/.ready
# Most tests wait for processes rather than compute, so more of them run side by side than there are two cores.
JOBS ?= 4
# The servers that tests share let in the users of deploy/redis/users.acl alone; 0 tries them without.
REDIS_ACL ?= 1

# Of `make bench`: parts, more rounds instead of ten minutes, and whether its figures go into the documents.
ONLY ?=
FULL ?=
PUBLISH ?=

# The seed of `make chaos`: drawn and printed when it is empty.
CHAOS_SEED ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo examples test fast lint docs bench chaos soak clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Make .venv with everything the other targets need

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is no Python 3.10 or later: name one, make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## The main job on this machine: Redis, sandbox daemon and worker, groups of candidates graded
	$(BIN)/collimate demo

$(OPENENV_STAMP): pyproject.toml examples/openenv/requirements.txt
	$(PYTHON) -m venv $(OPENENV)
	$(OPENENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[local]' \
	  --requirement examples/openenv/requirements.txt
	$(OPENENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'openenv>=0.10,<0.11'
	touch $(OPENENV_STAMP)

examples: $(STAMP) $(OPENENV_STAMP)  ## A fake policy under each framework's hook: slime, SkyRL, TRL, verl, OpenEnv
	for name in slime skyrl trl verl; do echo "$$name:" && $(BIN)/python examples/$$name/run.py || exit 1; done
	@echo "openenv:"
	$(OPENENV)/bin/python examples/openenv/run.py

test: $(STAMP)  ## The whole test suite, with real servers, daemon and workers
	@# Real processes under leases, on few cores: what fails beside the others is tried once more by itself, and said.
	REDIS_ACL=$(REDIS_ACL) $(BIN)/python -m pytest -q tests -n $(JOBS) --dist loadfile || { [ $$? = 1 ] && \
	  echo "FAILED BESIDE THE OTHERS (see above); each once more, one by one:" && \
	  REDIS_ACL=$(REDIS_ACL) $(BIN)/python -m pytest -q tests --last-failed --last-failed-no-failures none; }

fast: $(STAMP)  ## The tests that need no Redis and no namespaces
	$(BIN)/python -m pytest -q

lint: $(STAMP)  ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs:  ## Write the pages of docs/reference/api from the sources
	$(PYTHON) -m docs.apigen

bench: $(STAMP)  ## Peers, floors, growth, scale, beside their targets, in ten minutes (ONLY=peers,growth FULL=1 PUBLISH=1)
	$(BIN)/python -m benchmarks $(if $(FULL),,--quick) $(if $(ONLY),--only $(ONLY)) $(if $(PUBLISH),--publish)

chaos: $(STAMP)  ## The queue at length: every fault on 1,000 batches, and larger worlds for its model (CHAOS_SEED=n)
	CHAOS=long CHAOS_SEED=$(CHAOS_SEED) $(BIN)/python -m pytest -q -s tests/chaos
	EXPLORE=long REPEAT=20 $(BIN)/python -m pytest -q tests/unit/test_protocol_explorer.py \
	  tests/integration/test_scripts_against_model.py tests/integration/test_queue_fairness.py

soak: $(STAMP)  ## At length, with flat resources: the sandbox daemon (20,000 execs, 2,000 sessions), the queue (100,000 candidates)
	SOAK=long $(BIN)/python -m pytest -q -s tests/integration/test_sandboxd_soak.py tests/integration/test_queue_soak.py \
	  tests/e2e/test_demo.py
	MUTANTS=long DIFFERENTIAL=long ATTACKS=long $(BIN)/python -m pytest -q tests/integration/test_asserts_agreement.py \
	  tests/integration/test_generated_agreement.py tests/integration/test_grading_attacks.py

clean:  ## Remove .venv, the caches and what builds leave
	rm -rf $(VENV) $(OPENENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info build dist
