# One entry for everything; `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PY := .venv/bin/python
UV := .cache/uv/bin/uv
UV_VERSION := 0.13.9
# A registry may be away for a moment: a command that asks one is tried three times.
TRY := try() { for pause in 10 30 -; do timeout --foreground 1800 "$$@" && return; [ $$pause = - ] || { echo "failed; again in $$pause s: $$*" >&2; sleep $$pause; }; done; return 1; }; try
export UV_PYTHON_DOWNLOADS := never
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help chart setup check format test test-unit test-crashes test-revocations test-alerts test-clients fuzz demo dev bench-quick bench-full bench-keys bench-ledger bench-revocation bench-hostile bench-overload bench-soak scale-plan prices vectors lock build clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.cache/uv/bin/uv:
	@python3 -c 'import sys; sys.exit("daypass needs Python 3.11 or newer as python3; found %s" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@python3 -m venv .cache/uv
	@$(TRY) .cache/uv/bin/python -m pip install -q --disable-pip-version-check uv==$(UV_VERSION)

.venv/.ready: .cache/uv/bin/uv uv.lock pyproject.toml $(wildcard */pyproject.toml) tests/clients/anthropic1.txt
	@echo "installing locked dependencies (first time: a few minutes)"
	@$(TRY) $(UV) sync -q --locked --all-packages --all-groups --compile-bytecode
	@$(UV) venv -q --allow-existing .cache/clients/anthropic1
	@$(TRY) $(UV) pip sync -q --compile-bytecode --python .cache/clients/anthropic1/bin/python --require-hashes tests/clients/anthropic1.txt
	@touch $@

setup: .venv/.ready ## install everything the project needs into .venv (locked)

check: setup ## lint, types, import layers, file and function sizes
	@.venv/bin/ruff format --check -q . && .venv/bin/ruff check -q .
	@.venv/bin/mypy --no-error-summary sdk/daypass core/daypass_core broker/daypass_broker proxy migrations/daypass_migrations demo tests
	@mkdir -p build; .venv/bin/lint-imports >build/lint-imports.txt 2>&1 || { cat build/lint-imports.txt; exit 1; }
	@$(PY) tests/packaging/sizes.py
	@echo "check: clean"

format: setup ## rewrite files in house format
	@.venv/bin/ruff format -q . && .venv/bin/ruff check -q --fix .

test: setup check ## run every test on real servers (OpenBao, PostgreSQL, LLM, official clients)
	@run=$$(mktemp -d /tmp/dp-XXXXXX); \
	$(PY) -m pytest -q --basetemp=$$run/t || { echo "what the run wrote: $$run"; exit 1; }; \
	rm -rf $$run || true

test-unit: setup ## run the unit tests only (seconds)
	@$(PY) -m pytest -q tests/unit

test-crashes: setup ## kill the proxy and PostgreSQL 20 times each under 50 streams (3 minutes)
	@$(PY) -m pytest -q tests/integration/test_crashes.py --crash-rounds 20

test-revocations: setup ## race 200 revocations against 50 exchanges each, then restart all (10 minutes)
	@$(PY) -m pytest -q tests/integration/test_revocation_fleet.py -k issued_before_or_during --revocation-rounds 200

test-alerts: setup ## run the alert rules against made-up series with Prometheus' promtool (seconds)
	@$(PY) -m tests.promtool

test-fleet: setup ## strike 3 proxies, 2 brokers, PostgreSQL and OpenBao with every fault (as root; 15 minutes)
	@$(PY) -m tests.fleet

test-clients: setup ## drive every real client through every answer of ours, and directly (15 minutes)
	@$(PY) -m tests.clients.matrix

FUZZ_SECONDS ?= 60
fuzz: setup ## drive every fuzz target for a minute (FUZZ_SECONDS=…); findings lie in build/fuzz
	@set -e; for target in $(notdir $(wildcard tests/fuzz/corpus/*)); do \
		mkdir -p build/fuzz/$$target; echo "fuzz: $$target"; \
		$(PY) -m tests.fuzz.fuzz $$target -max_len=4096 -max_total_time=$(FUZZ_SECONDS) -timeout=10 -verbosity=0 \
			-artifact_prefix=build/fuzz/ build/fuzz/$$target tests/fuzz/corpus/$$target; done

demo: setup ## the product's first minute: OpenBao, a real LLM, a sandbox, a revocation
	@$(PY) -m demo

dev: setup ## start broker and proxy on this machine (stop with Ctrl-C)
	@$(PY) -m daypass up --dir .cache/dev

bench-quick: setup ## CPU per request as ratios to nginx and HAProxy (about a minute; not a test)
	@$(PY) -m bench quick

bench-full: setup ## the same beside every peer and case, peers installed into .cache (15 minutes)
	@$(PY) -m bench full

bench-keys: setup ## what issuing costs with keys in files and in OpenBao (30 seconds)
	@$(PY) -m bench.keys

bench-ledger: setup ## admissions and settlements a second on SQLite and PostgreSQL (3 minutes)
	@$(PY) -m bench.ledger

bench-revocation: setup ## how long what was revoked is still accepted, as a histogram (4 minutes)
	@$(PY) -m bench.revocation

bench-soak: setup ## half an hour of streams, calls, renewals, revocations: does anything grow? (35 minutes)
	@$(PY) -m bench.soak

scale-plan: setup ## what 1,000 to 1,000,000 sandboxes take, simulated with measured figures (seconds)
	@$(PY) -m bench.scale_plan

bench-hostile: setup ## slow and silent clients by the hundred, and what good ones notice (4 minutes)
	@$(PY) -m bench.hostile

bench-overload: setup ## twice the calls and four times the streams that it can do (5 minutes)
	@$(PY) -m bench.overload

prices: setup ## write proxy/daypass_proxy/prices.json anew from the pinned price data
	@$(PY) proxy/tools/make_prices.py

chart: setup ## write the chart's README, schema and copied files anew
	@$(PY) -m tests.packaging.chart_pages

vectors: setup ## write tests/vectors anew
	@$(PY) -m tests.vectors.make_access_tokens && $(PY) -m tests.vectors.make_trail_chain

lock: .cache/uv/bin/uv ## resolve dependencies anew (packages younger than 7 days are held back)
	@$(UV) lock --upgrade
	@printf 'hatchling>=1.27\nuv==$(UV_VERSION)\n' | $(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate - -o deploy/images/build.txt
	@for each in anthropic1 npm openai3 frameworks matrix/locks/aider matrix/locks/llm; do \
		$(UV) pip compile -q --generate-hashes --no-header --no-annotate tests/clients/$$each.in -o tests/clients/$$each.txt || exit 1; done

build: setup ## build the wheels of all five distributions into dist/
	@$(UV) build -q --all-packages --out-dir dist

clean: ## remove what setup, build and tests made
	@rm -rf .venv .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
