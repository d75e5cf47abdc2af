# MiniQ. `make help` lists what there is.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# Two stamps in one environment: the broker and its command, and on top of it what tests, benchmarks and Spark need.
BASE := $(VENV)/.base
READY := $(VENV)/.ready
WORKERS ?= 3
# Tests start hundreds of Pythons: each would compile MiniQ anew where the environment forbids bytecode. Files run in the
# order of their names: acceptance, which takes longest, comes first and the short unit tests last, on all workers, which wait for half of the time.
TESTS := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help setup serve browser node pictures quick test check generate fmt bench bench-postgres bench-mongodb bench-http bench-zmq bench-backlog bench-peers bench-peers-backlog
.PHONY: bench-celery bench-spark bench-sqs bench-workers bench-console bench-queues bench-schedules copy-large docs dist pythons container celery-suite dramatiq-suite faults faults-damage
.PHONY: faults-databases faults-interruptions faults-spark faults-checkpoints faults-workers faults-topics faults-celery soak fuzz differential demo clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 22

setup: $(READY) ## make .venv with MiniQ, all extras and the tools for tests (1.7 GB)

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("MiniQ needs Python 3.11 or later; \
	name one: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'installing MiniQ in $(VENV) ...'
	@$(PIP) -e .
	@touch $@

$(READY): $(BASE)
	@echo 'installing all extras and the tools for tests in $(VENV) ...'
	@$(PIP) --upgrade pip
	@$(PIP) -e '.[all]' --group dev
	@touch $@

serve: $(BASE) ## set up the broker alone and run it on 127.0.0.1 (under 100 MB)
	@$(BIN)/miniq serve

browser: ## install Chromium from Debian's packages, if it is missing (run as root)
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
	    chromium fonts-dejavu-core fonts-noto-color-emoji >/dev/null; \
	else echo 'There is no chromium: the tests of the console need it.'; fi

node: ## install what the tests of JavaScript programs need in .venv/node, and Node.js from Debian's packages if it is missing (as root)
	@command -v npm >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends nodejs npm >/dev/null; \
	else echo 'There is no npm: the tests of JavaScript programs need it.'; fi
	@! command -v npm >/dev/null || cmp -s tests/acceptance/node/package.json $(VENV)/node/.installed || { \
	  echo 'installing JavaScript packages in $(VENV)/node ...'; \
	  mkdir -p $(VENV)/node && cp tests/acceptance/node/package.json $(VENV)/node/ && \
	  npm install --prefix $(VENV)/node --no-audit --no-fund --no-package-lock --silent && \
	  cp tests/acceptance/node/package.json $(VENV)/node/.installed; }

quick: setup ## unit tests, and the rules of the broker and its protocols on the memory store (half a minute)
	$(TESTS) -q --stores memory tests/unit tests/conformance

test: setup browser node ## set up and run all tests
	CI=$${CI:-true} $(TESTS) --dist loadfile --no-loadscope-reorder

generate: setup ## write the blocking client from the one for event loops
	$(BIN)/python scripts/generate_sync.py

celery-suite: setup ## Celery's own integration tests on MiniQ and, if redis-server is installed, on Redis (downloads them; 20 minutes)
	$(BIN)/python scripts/celery_suite

dramatiq-suite: setup ## Dramatiq's own tests against MiniQ (downloads them; 5 minutes)
	$(BIN)/python scripts/dramatiq_suite --timeout 60

check: setup ## format, lint, types, import rules, and whether what is generated is up to date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/generate_sync.py --check

fmt: setup ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup ## build the manual, a searchable site of docs/, for /manual of brokers of this checkout
	$(BIN)/python -m miniq.manual --strict

dist: docs ## build the wheel, with the manual, and the source distribution in dist/
	$(BIN)/hatchling build -d dist

pythons: setup ## unit and conformance tests on every Python from 3.11 to 3.14 that can be had here (15 minutes; as root, also from Debian)
	$(BIN)/python -m scripts.pythons

container: setup ## execute the Dockerfile in a chroot and use the result, without Docker (as root on Debian, needs debootstrap)
	$(BIN)/python -m scripts.container

bench: setup ## speed of the embedded broker against a raw append-and-fsync loop (2 minutes, idle machine)
	$(BIN)/python -m bench.core

bench-http: setup ## speed through HTTP against the raw disk, and against Redis where wrk and redis are installed
	$(BIN)/python -m bench.http

bench-zmq: setup ## speed through ZeroMQ against HTTP on the same server (1 minute, idle machine)
	$(BIN)/python -m bench.zmq

bench-backlog: setup ## speed, memory and start-up with 2 million queued messages (3 minutes, idle machine)
	$(BIN)/python -m bench.backlog

bench-peers: setup ## against Redis, beanstalkd, NATS, RabbitMQ and PostgreSQL, those that are installed (10 minutes, idle machine)
	$(PIP) --group peers
	$(BIN)/python -m bench.peers

bench-peers-backlog: setup ## the same while 5 million messages wait (15 minutes, idle machine)
	$(PIP) --group peers
	$(BIN)/python -m bench.peers.backlog

bench-workers: setup ## tasks against Celery, Dramatiq, RQ and Huey on Redis, if redis-server is installed (11 minutes, idle machine)
	$(PIP) --group peers
	$(BIN)/python -m bench.workers

bench-sqs: setup ## boto3 against moto's server, and what the SQS wire costs beside native HTTP (4 minutes, idle machine)
	$(PIP) --group peers
	$(BIN)/python -m bench.sqs

bench-celery: setup ## Celery on MiniQ beside Celery on Redis and RabbitMQ, where they are installed (5 minutes, idle machine)
	$(BIN)/python -m bench.celery

bench-spark: setup ## ingest, drain and archive on Spark, a million messages each, beside the obvious way (10 minutes, idle)
	$(BIN)/python -m bench.spark

faults-spark: setup ## kill -9 of Spark's driver and of the broker, thirty times each under two pipelines (half an hour)
	$(BIN)/python -m tests.faults.spark

faults-checkpoints: setup ## checkpoints that are copied, restored, cut, deleted and exchanged between kills, 100 rounds (half an hour)
	$(BIN)/python -m tests.faults.checkpoints

copy-large: setup ## a file of 1 GiB through a queue by `miniq pipeline copy`, compared byte by byte (some minutes)
	MINIQ_COPY_MIB=1024 $(BIN)/python -m pytest -s -o timeout=3600 tests/acceptance/test_spark_pipelines.py -k large

fuzz: setup ## fuzz every parser of outside input with atheris (a minute or two)
	$(PIP) --group fuzz
	$(BIN)/python -m tests.faults.fuzz

differential: setup ## random HTTP requests: the fast path and the framework must answer them alike (10 minutes)
	$(BIN)/python -m tests.faults differential --sequences 20000

faults: setup ## every fault many times under load, and the table in docs/reliability.md (two to three hours)
	$(BIN)/python -m tests.faults --jobs 4

faults-damage: setup ## flips and cuts in every file of closed folders and backups, and their table (half an hour)
	$(BIN)/python -m tests.faults damage

faults-databases: setup ## three brokers on each database: faults, and queues of every size and form, and their table (half an hour; STORE=, ONLY=, SCALE=)
	$(BIN)/python -m tests.faults drill $(if $(STORE),--store $(STORE)) $(if $(ONLY),--only '$(ONLY)') $(if $(SCALE),--scale $(SCALE))

faults-interruptions: setup ## Ctrl-C and SIGTERM in every command and call that leases, fifty times each (half an hour)
	$(BIN)/python -m tests.faults interruptions

faults-workers: setup ## workers stopped under load and processes of workers killed, fifty times each (ten minutes)
	$(BIN)/python -m tests.faults workers

faults-topics: setup ## kill -9 at the writes of publications, and of brokers that fire schedules, and their table (half an hour)
	$(BIN)/python -m tests.faults topics

faults-celery: setup ## Celery's workers, their pools and the broker killed at random under 5,000 tasks that ack late (five minutes)
	$(BIN)/python -m tests.faults.celery

soak: setup ## all kinds of load at once with two restarts, and the balance sheet (15 minutes; MINUTES=, STORE=)
	$(BIN)/python -m tests.faults soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(STORE),--store $(STORE))

bench-console: setup ## what watching costs with 500 queues and 1 million messages (6 minutes, idle machine)
	$(BIN)/python -m bench.console

bench-queues: setup ## what 50,000 queues cost: opening, idle CPU, latency (5 minutes, idle machine)
	$(BIN)/python -m bench.queues

bench-schedules: setup ## how late 100 schedules fire, until a client over HTTP has their messages (2 minutes, idle machine)
	$(BIN)/python -m bench.schedules

pictures: setup browser ## take the pictures of the console that the documentation shows
	MINIQ_PICTURES=docs/img $(BIN)/python -m pytest -q tests/acceptance/test_pictures.py

bench-postgres: setup ## speed of brokers on PostgreSQL against a plain SKIP LOCKED table (3 minutes, idle machine)
	$(BIN)/python -m bench.postgres

bench-mongodb: setup ## speed of a broker on MongoDB against PostgreSQL and a plain collection (5 minutes, idle machine)
	$(BIN)/python -m bench.mongodb

demo: setup ## producers, failing workers, a crash, then Spark: archive, dead letters, report; for real in a minute or two
	$(BIN)/python -m miniq.demo

clean: ## remove what the other targets made
	rm -rf $(VENV) dist src/miniq/manual/site miniq-data .mypy_cache .ruff_cache .pytest_cache .hypothesis miniq-demo
