# SPDX-License-Identifier: Apache-2.0
#
# make run                  both services on the demo model: answers a sample prompt, then serves
# make run PROMPT="..."     answers that prompt, then stops
# make test                 style, types, contract and every quick test
# make test-slow            the rest
# make protos               the stubs, after a change to a .proto file
# make monitoring           rules and dashboards, after a change to k8s/monitoring/knobs.yaml
# make monitor              both services under a load, with Prometheus and our dashboards' panels in a browser
# make test-containers      images built and run for real (root; minutes)
# make clean                removes what these made

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
OUT := .
TEST_BUDGET_S := 900
SLOW_TEST_BUDGET_S := 2400

SAMPLE_PROMPT := What is the capital of France?
# As the caller wrote it, whatever quotes and dollars are in it.
override PROMPT := $(value PROMPT)
export PROMPT SAMPLE_PROMPT
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: run test check test-slow protos monitoring monitor test-containers clean

run: $(VENV)/.run
ifdef PROMPT
	@exec packserve up --prompt "$$PROMPT"
else
	@exec packserve up --prompt "$$SAMPLE_PROMPT" --chat --keep-serving
endif

test: $(VENV)/.test
	@.ci/timed "make test" $(TEST_BUDGET_S) $(MAKE) --no-print-directory check

check:
	ruff check .
	ruff format --check .
	mypy
	buf lint
	buf format --diff --exit-code
	python -m pytest -m "not slow"

# What the tests of monitoring run for real.
SERVERS := prometheus prometheus-alertmanager chromium

test-slow: $(VENV)/.test
	@.ci/packages $(SERVERS)
	@.ci/timed "make test-slow" $(SLOW_TEST_BUDGET_S) python -m pytest -m slow

protos: $(VENV)/.test
	python -m grpc_tools.protoc -I. --python_out=$(OUT) --pyi_out=$(OUT) protos/packserve/v1/*.proto
	python -m grpc_tools.protoc -I. --grpc_python_out=$(OUT) --mypy_grpc_out=$(OUT) \
		protos/packserve/v1/executor.proto protos/packserve/v1/tokenizer.proto

# A stamp for each set of requirements: installing again only when they changed.
$(VENV)/.run: EXTRAS := tokenizer,executor
$(VENV)/.test: EXTRAS := tokenizer,executor,test
$(VENV)/.run $(VENV)/.test: pyproject.toml constraints.txt
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing packserve[$(EXTRAS)] into $(VENV), a minute or two"
	@$(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

monitoring: $(VENV)/.test
	python -m k8s.monitoring.render
	python -m k8s.monitoring.document

monitor: $(VENV)/.test
	@.ci/packages prometheus prometheus-alertmanager
	@exec python -m k8s.monitoring.local

test-containers: $(VENV)/.test
	python -m tests.containers.run

clean:
	rm -rf $(VENV) .venv-npu .venv-policy .venv-envoy .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
