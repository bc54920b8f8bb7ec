# Everything a contributor or a CI machine runs. Needs Python 3.11 or later, and the network for the first `make`:
# the environment lives in .venv and is brought up to date when pyproject.toml or the lock files in requirements/ change.
# `make install`, `make demo`, `make bench` and `make wheel` install what the service needs; everything else also what its
# tests need.

PYTHON ?= python3
VENV   ?= .venv
PY     ?= $(VENV)/bin/python
STAMP  ?= $(VENV)/.installed
TOOLS  ?= $(VENV)/.tools
# Options for pytest (make test ARGS="-k catalog"), campaign (--rounds), bench (make bench ARGS="--batch 50"),
# demo (make demo ARGS=--full) and pip-audit (make audit ARGS="-s osv")
ARGS   ?=
# Seeds of the simulation: how many, and the first; CANARIES=1 looks for broken builds instead
SEEDS      ?= 200
FIRST_SEED ?= 1
CANARIES   ?=
# Pairs of selector and message that the campaign compares
PAIRS      ?= 5000000
# Where `make proto` writes
OUT    ?= .
# Where `make wheel` writes
DIST   ?= dist

# pip installs exactly what the lock files name, and compares each download with its hashes. Dependencies that have no
# wheel are built with the tools of requirements/build.txt.
PIP    := -m pip install --quiet --disable-pip-version-check
LOCKED := --require-hashes --no-build-isolation --use-pep517 --requirement
LOCKS  := requirements/build.txt requirements/server.txt requirements/dev.txt
PROTO  ?= $(VENV)/proto
AUDIT  ?= $(VENV)/audit

PROTOS := $(patsubst proto/%,%,$(sort $(wildcard proto/quorum/v1/*.proto)))

.PHONY: help install check test simulate campaign bench proto lock audit wheel demo clean
.DEFAULT_GOAL := help

help:
	@echo "make install   the command quorum in .venv, with all that members and clients need"
	@echo "make check     style, types, the order of packages and modules, generated code up to date"
	@echo "make test      all other tests, a few rounds of each crash and damage test"
	@echo "make simulate  the whole cluster in one thread, from seeds, with everything failing (SEEDS=1000 FIRST_SEED=1);"
	@echo "               CANARIES=1: the broken builds that it must notice"
	@echo "make campaign  many rounds of kills, power cuts, partitions, failing disks and damage of real processes"
	@echo "               (hours; ARGS=\"--rounds 10\" for a tenth, ARGS=\"--only power\" for some, ARGS=--secured with TLS), and many"
	@echo "               seeds of the simulation (SEEDS=1000), each with a report; selectors, over PAIRS=5000000"
	@echo "make bench     three members on this machine under load; ARGS are those of 'quorum bench both'"
	@echo "make demo      the main job on real data; ARGS are those of 'quorum demo'"
	@echo "make proto     generates quorum/v1 from proto/ again"
	@echo "make lock      writes requirements/*.txt again, after a change of pyproject.toml; ARGS=--upgrade: newest releases"
	@echo "make audit     looks for known vulnerabilities of the packages in requirements/*.txt; needs PyPI, and is in no other target"
	@echo "make wheel     builds the wheel in dist/; equal files give equal bytes"
	@echo "make clean     removes the environment and everything that was built"

install: $(STAMP)

$(VENV)/.installed: pyproject.toml $(LOCKS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, this is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python $(PIP) --require-hashes --requirement requirements/build.txt
	$(VENV)/bin/python $(PIP) $(LOCKED) requirements/server.txt
	$(VENV)/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	$(VENV)/bin/python -m compileall -q fifo quorum selectors
	@touch $@

# PySpark is published as source only. Its wheel is installed once, so it is not compressed. The tests use a small part of
# all these modules, so Python compiles them when they are imported.
$(VENV)/.tools: $(VENV)/.installed
	@echo "installing what the tests need; PySpark alone is 450 MB"
	$(VENV)/bin/python $(PIP) --no-compile --config-settings=--build-option=--compression=stored $(LOCKED) requirements/dev.txt
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get install -qq --no-install-recommends chromium >/dev/null 2>&1; } || \
	  echo "chromium is not installed, and could not be: the tests of the management page are left out"
	@touch $@

# What is done in parts, side by side: LANES parts at a time, in the order of their names here. A line tells how each part
# ended. Each has a log of its own; the logs of those that failed are shown at the end.
LANES ?= $(shell expr $$(nproc) + 1)
define side-by-side
@rm -rf $(VENV)/$@ && mkdir -p $(VENV)/$@
@echo "$(words $1) parts, $(LANES) at a time, with logs in $(VENV)/$@: $1"
+@$(MAKE) --silent --no-print-directory --keep-going --jobs $(LANES) LOGS=$(VENV)/$@ $(addprefix part-,$1) || \
  { for log in $(VENV)/$@/*.failed; do printf '\n%s:\n' "$$log"; cat "$$log"; done; exit 1; }
endef

part-%:
	($(part_$*)) > $(LOGS)/$*.log 2>&1; status=$$?; echo "$*: $$(tail -n 1 $(LOGS)/$*.log)"; \
	[ $$status = 0 ] || mv $(LOGS)/$*.log $(LOGS)/$*.failed; exit $$status

part_layout := $(PY) -m pytest tests/layout
# The broken builds reach into the product: mypy finds a name that the product does not have any more.
part_types  := $(PY) -m mypy && MYPYPATH=selectors:spark:tests $(PY) -m mypy -m simulator.broken.parts
part_style  := $(PY) -m ruff check . && $(PY) -m ruff format --check .
check: $(TOOLS) $(PROTO)/.installed
	$(call side-by-side,layout types style)

# The parts of the tests, those that take longest first. Tests that start processes and JVMs wait for a part of the time,
# so one part more runs at a time than there are processors. Parts that start members take their ports from ranges of
# their own (tests/conftest.py), because two tests that look for free ports at the same time may find the same ones. The
# tests of Spark share one session.
# `others` has what no other part has, but for the layout: that is a part of `make check`.
COMMANDS        := tests/bench tests/cli tests/demo
OF_A_PART       := $(COMMANDS) $(addprefix tests/,api fifo layout node processes simulation spark)
part_processes  := $(PY) -m pytest tests/processes
part_commands   := $(PY) -m pytest $(COMMANDS)
part_spark      := $(PY) -m pytest tests/spark
part_others     := $(PY) -m pytest tests $(addprefix --ignore ,$(OF_A_PART))
part_simulation := $(PY) -m pytest tests/simulation
part_fifo       := $(PY) -m pytest tests/fifo
part_node       := $(PY) -m pytest tests/node
part_api        := $(PY) -m pytest tests/api
test: $(TOOLS)
ifeq ($(ARGS),)
	$(call side-by-side,spark processes commands others simulation api fifo node)
else
	$(PY) -m pytest tests $(ARGS)
endif

simulate: $(TOOLS)
	PYTHONPATH=tests $(PY) -m simulator --first $(FIRST_SEED) --seeds $(SEEDS) \
	  $(if $(CANARIES),--canaries "$(CANARIES)")

campaign: $(TOOLS)
	$(PY) tests/processes/campaign.py $(ARGS)
	PYTHONPATH=tests $(PY) -m simulator --first $(FIRST_SEED) --seeds $(SEEDS)
	PYTHONPATH=tests $(PY) -m support.raft.fuzz --seeds 1 $(SEEDS) --real-log
	PYTHONPATH=tests $(PY) -m support.selectors.oracle --first $(FIRST_SEED) --pairs $(PAIRS)
	PYTHONPATH=tests $(PY) -m support.histories.big
	HYPOTHESIS_PROFILE=explore $(PY) -m pytest tests/api tests/catalog tests/fifo tests/log tests/node tests/replication \
	  tests/selectors tests/client/test_client_parts.py \
	  tests/spark/test_spark_selectivity.py tests/spark/test_spark_variant.py tests/spark/test_spark_verify.py

bench: $(STAMP)
	$(PY) -m quorum bench both $(ARGS)

demo: $(STAMP)
	$(PY) -m quorum demo $(ARGS)

# google/rpc/status.proto comes from the package googleapis-common-protos, the google/protobuf ones from grpcio-tools.
proto: $(PROTO)/.installed
	$(PROTO)/bin/python -m grpc_tools.protoc -Iproto \
	  -I"$$($(PROTO)/bin/python -c 'import pathlib, google.rpc.status_pb2 as m; print(pathlib.Path(m.__file__).parents[2])')" \
	  --python_out=$(OUT) --pyi_out=$(OUT) --grpc_python_out=$(OUT) $(PROTOS)

$(PROTO)/.installed: requirements/proto.txt
	$(PYTHON) -m venv $(PROTO)
	$(PROTO)/bin/python $(PIP) --no-compile --require-hashes --requirement requirements/proto.txt
	@touch $@

# uv writes lock files for all versions of Python from 3.11 on. What the files name stays, if it can.
LOCK = $(VENV)/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
  --custom-compile-command 'make lock' $(ARGS)
lock:
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python $(PIP) uv
	$(LOCK) pyproject.toml --extra dev --extra otel --extra server --extra spark --group build -o requirements/dev.txt
	$(LOCK) pyproject.toml --extra server --constraint requirements/dev.txt -o requirements/server.txt
	$(LOCK) --group build --constraint requirements/dev.txt -o requirements/build.txt
	$(LOCK) --group proto -o requirements/proto.txt
	$(LOCK) --group audit -o requirements/audit.txt

# --strict: it is a failure if the service does not know a package or does not answer. One file at a time, because they
# have different versions of a package; dev.txt has everything of server.txt and build.txt.
audit: $(AUDIT)/.installed
	@status=0; for file in dev proto audit; do echo "requirements/$$file.txt:"; \
	  $(AUDIT)/bin/pip-audit --strict --disable-pip --progress-spinner off -r requirements/$$file.txt $(ARGS) || status=1; \
	done; exit $$status

$(AUDIT)/.installed: requirements/audit.txt
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python $(PIP) --require-hashes --requirement requirements/audit.txt
	@touch $@

# The wheel has a fixed time in place of those of its files (or SOURCE_DATE_EPOCH), and fixed permissions.
wheel: $(STAMP)
	$(PY) -m hatchling build -t wheel -d $(DIST)
	@sha256sum $(DIST)/*.whl

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
