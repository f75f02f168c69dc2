# Everything is done by `make`, from a fresh clone on. The set-up steps skip themselves when nothing has changed, so
# each target simply asks for all it needs. PYTHON=/path/to/python3 chooses the interpreter of a new environment.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup setup-demo setup-dev setup-bench setup-servers install demo test test-lowest lint mutants prove bench \
	bench-delivery bench-fleet bench-planner bench-timelines bench-transport bench-http bench-mail backoff-page metrics-page \
	policies-page dashboard docs example-file lock mail-picture page-picture demo-picture river clean

VENV := .venv
LOWEST_VENV := .venv-lowest
NSQ := github.com/nsqio/nsq/apps
# Tests wait more than they compute, so a few files of them go side by side. Each file stays in one process, and
# tests/conftest.py says which files come first.
WORKERS ?= 4
PYTEST := pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# Servers that were built here come before the machine's own. What is tested is the installed package: a PYTHONPATH
# from outside could slip another one in.
export PATH := $(CURDIR)/.servers/bin:$(PATH)
unexport PYTHONPATH PYTHONHOME

help: ## list what make can do
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name what; do printf '  make %-15s %s\n' "$$name" "$$what"; done

setup: setup-dev setup-servers ## make ready for everything: .venv, nsqd, nsqlookupd, Redis, Valkey, Chromium

setup-demo: ## make ready for the demo only: .venv and Redis
	@scripts/setup-venv $(VENV) runtime build
	@scripts/setup-redis $(VENV)

setup-dev:
	@scripts/setup-venv $(VENV) runtime build dev

setup-bench:
	@scripts/setup-venv $(VENV) runtime build dev bench

setup-servers:
	@scripts/setup-redis $(VENV) oldest
	@scripts/setup-valkey
	@scripts/setup-prometheus
	@scripts/setup-browser
	@scripts/go-build servers $(NSQ)/nsqd $(NSQ)/nsqlookupd

install:
	@scripts/install-wheel $(VENV)

demo: setup-demo install ## run the whole of it on this machine for about 30 s (DEMO_SECONDS=0: until Ctrl-C)
	@$(VENV)/bin/nsqdigest demo

test: setup install ## run the tests against real servers (ARGS="-k claim -x" goes to pytest)
	NSQDIGEST_TEST_INSTALLED=1 $(VENV)/bin/$(PYTEST) $(ARGS)

lint: setup-dev docs ## check style, types, unused code, the shell scripts and the links of docs/
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/vulture
	for script in .ci/run scripts/lib.sh $$(grep -l -d skip '^#!.*bash' scripts/*); do bash -n "$$script" || exit 1; done

docs: setup-dev ## build the site of docs/ into site/; a warning is an error
	$(VENV)/bin/properdocs build --strict --quiet

mutants: setup ## break the package in many ways, one at a time; the tests are to notice (ARGS="events", ARGS="--list")
	$(VENV)/bin/python -m scripts.mutants $(ARGS)

prove: setup install test-lowest ## run the same tests with bigger numbers, the lowest dependencies and the mutants (long)
	NSQDIGEST_TEST_INSTALLED=1 NSQDIGEST_PROVE=1 HYPOTHESIS_PROFILE=deep $(VENV)/bin/$(PYTEST) $(ARGS)
	$(VENV)/bin/python -m scripts.mutants

test-lowest: setup ## run the tests with the lowest versions that pyproject.toml allows
	@LOWEST=1 scripts/setup-venv $(LOWEST_VENV) runtime build dev
	@scripts/install-wheel $(LOWEST_VENV)
	NSQDIGEST_TEST_INSTALLED=1 $(LOWEST_VENV)/bin/$(PYTEST) -m "unit or script or integration" $(ARGS)

bench: setup-bench setup-servers install ## measure throughput beside peers; writes the table and the picture
	$(VENV)/bin/python -m bench.throughput $(ARGS)

bench-delivery: setup-bench setup-servers install ## measure how fast digests go out, beside BullMQ (needs Node.js); writes the page
	$(VENV)/bin/python -m bench.delivery $(ARGS)

bench-fleet: setup-dev ## simulate a thousand daemons and a sick store; writes the tables and the pictures
	$(VENV)/bin/python -m bench.fleet $(ARGS)

bench-planner: setup-dev ## measure how the cost of a RDY plan grows with the connections; writes the table
	$(VENV)/bin/python -m bench.planner $(ARGS)

backoff-page: setup-dev ## write docs/backoff.md and its pictures from the table of transitions
	$(VENV)/bin/python -m scripts.backoff_page $(ARGS)

policies-page: setup-dev ## write docs/policies.md and its pictures from the simulator
	$(VENV)/bin/python -m scripts.policies_page $(ARGS)

metrics-page: setup-dev ## write docs/metrics.md from the table of metrics
	$(VENV)/bin/python -m scripts.metrics_page

dashboard: setup-dev ## write config/grafana-dashboard.json from the rows and panels in scripts/dashboard.py
	$(VENV)/bin/python -m scripts.dashboard $(ARGS)

example-file: setup-dev ## write config/nsqdigest.toml from the declared options
	$(VENV)/bin/python -m scripts.example_file

mail-picture: setup-dev ## write docs/pictures/mail.png (needs Chromium)
	$(VENV)/bin/python -m scripts.mail_picture

page-picture: setup install ## write docs/pictures/page.png and page-dark.png (needs Chromium; takes three minutes)
	PYTHONPATH=tests/helpers $(VENV)/bin/python -m scripts.page_picture

demo-picture: setup-demo install ## write docs/pictures/demo.svg: the moments of a demo, drawn by itself
	$(VENV)/bin/nsqdigest demo --picture docs/pictures/demo.svg

lock: setup-dev ## write scripts/locked/: the newest versions that pyproject.toml allows, with their hashes
	@scripts/lock-requirements $(VENV)

river: setup install ## write the way of one event and of one digest into docs/how-it-works.md, traced at run time
	$(VENV)/bin/python -m scripts.river --write

bench-transport: setup-bench setup-servers install ## measure the connection to nsqd alone, beside pynsq's
	$(VENV)/bin/python -m bench.transport $(ARGS)

bench-mail: setup-dev ## measure mails beside a bare loop of the client; writes the table
	$(VENV)/bin/python -m bench.mail $(ARGS)

bench-http: setup-bench install ## measure our HTTP client beside others; writes the table
	$(VENV)/bin/python -m bench.http $(ARGS)

bench-timelines: setup-bench setup-servers install ## measure what timelines cost Redis; writes the table and the picture
	$(VENV)/bin/python -m bench.timelines $(ARGS)

clean: ## remove all that make has made
	rm -rf $(VENV) $(LOWEST_VENV) site .servers .hypothesis .pytest_cache .mypy_cache .ruff_cache .pictures dist
	find . -path ./.git -prune -o -name __pycache__ -type d -exec rm -rf {} +
