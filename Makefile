# Everything that a fresh checkout needs. `make demo` and `make test` are the two to know; `make help` lists the rest.
#
# Needs Python 3.11 or newer, a C compiler and PyPI. Nothing is installed outside the checkout: the virtual environment is
# .venv, the stamps that make a second run quick are in .make, and everything built is in build/ and dist/.

VENV   := .venv
PY     := $(VENV)/bin/python
# Each file is checked against the hash that .ci/lock.txt has of it.
LOCKED := $(PY) .ci/locked install
# The first interpreter that is new enough; `make PYTHON=/path/to/python` chooses another.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

# C that Cython wrote beside its .pyx (a traced build does) is no source.
KERNELS := $(wildcard cext/*/*.pyx cext/*/*.pxd cext/*/*.h cext/*/seg_*.c)
# Set TESTS to run some, in one process: make test TESTS='tests/format -k gzip'
TESTS   ?=
ON_EVERY_CORE := --numprocesses auto --dist worksteal
# Where tests have the mark `oracle`.
ORACLE := tests/oracle tests/endpoint/test_conversation.py

# Stamps say what was installed *here*: a checkout that was moved or lost its environment starts again.
ifneq ($(shell test -x $(PY) && cat .make/where 2>/dev/null),$(CURDIR))
$(shell rm -rf .make)
endif

# Tests that no word of $(TESTS) names a room of need neither PySpark nor Java: those are of tests/spark alone.
NEEDS_SPARK := $(or $(filter tests tests/ tests/spark%,$(TESTS)),$(if $(filter tests/%,$(TESTS)),,all))

.PHONY: help build dev demo test spark spark-matrix lint ruff cython-lint mypy stubtest torture oracle clients clients-long sanitize fuzz coverage bench dist docs man lock clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: .make/kernels  ## the virtual environment and the kernels

demo: build .make/java  ## show, verify and convert the sample directory of a real broker, here and on Spark
	@$(VENV)/bin/seglog demo

dev: build .make/unit  ## lint, and the tests without Spark: no PySpark, no JDK
	$(MAKE) ruff cython-lint mypy MYPY='--disable-error-code=import-not-found --no-warn-unused-ignores'
	$(PY) -m pytest $(or $(TESTS),tests --ignore=tests/spark $(ON_EVERY_CORE))

test: build $(if $(NEEDS_SPARK),.make/test .make/java,.make/unit)  ## every test that needs no cluster and no real Kafka
	$(PY) -m pytest $(or $(TESTS),$(ON_EVERY_CORE))

lint: ruff cython-lint mypy stubtest  ## ruff, cython-lint, mypy --strict, stubtest; all of them with make -k lint

torture: build .make/test  ## the tests at full size, on every core: up to an hour on two
	SEGLOG_TORTURE=1 $(PY) -m pytest $(ON_EVERY_CORE) $(TESTS)

oracle: build .make/test  ## the tests against real Kafka classes and a real broker: needs Java 17 and Maven
	$(PY) -m pytest -m oracle $(or $(TESTS),$(ORACLE) -n 2 --dist loadfile --no-loadscope-reorder)

clients: build .make/test  ## real clients from 0.8.2 to today and their own tests over our server: needs Java 17, Maven, Go, apt-get, g++
	$(PY) -m pytest -m clients -n 2 --dist loadfile --no-loadscope-reorder -rs $(or $(TESTS),tests/clients)

clients-long: build .make/test  ## those that take long: Kafka Streams under kills; needs Java 17 and Maven
	$(PY) -m pytest -m clients_long -rs $(or $(TESTS),tests/clients)

spark: build .make/test .make/java .make/connect .make/s3  ## the conversion on a cluster of its own, its faults, real brokers: up to an hour
	.ci/spark-archive 3.5.9
	$(PY) -m pytest -m spark $(or $(TESTS),tests/spark)

spark-matrix: build .make/test .make/java .make/connect  ## the conversion in local sessions of Spark 3.5 and 4.1 to 4.3, by Connect, and tables
	.ci/spark-matrix 3.5.9 4.1.1 4.2.0 4.3.0

sanitize: .make/test  ## kernels and hostile bytes under AddressSanitizer and UBSan, in a copy of its own
	.ci/instrumented sanitize $(TESTS)

fuzz: .make/test  ## changed bytes through segments, indexes, ledgers, snapshots and the wire, sanitized; MINUTES=30 for each
	.ci/instrumented fuzz $(or $(MINUTES),30) $(FAMILIES)

coverage: .make/test  ## line coverage of Python and Cython, in a copy of its own
	.ci/instrumented trace $(TESTS)

bench: build .make/test .make/java  ## ratios against other libraries, all in one run: build/benchmarks.json
	$(PY) -m benches --java --json build/benchmarks.json

dist: .make/test .make/dist  ## sdist and wheel, checked in an environment of their own; PYTHONS='python3.12 …' on these, too
	$(PY) .ci/check-dist $(PYTHONS)

docs: .make/docs  ## the site of docs/, in build/site
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

man: build  ## the manual pages, in build/man: MANPATH=build/man man seglog
	$(VENV)/bin/seglog man --quiet --into build/man/man1

lock: .make/lock  ## find out anew what make installs, the newest of all: .ci/lock.txt, with hashes
	$(PY) .ci/locked update

clean:  ## forget everything that was made here
	rm -rf .make $(VENV) build dist engine/*.egg-info engine/seglog/_kernels/*.so .coverage* .mypy_cache .pytest_cache \
		.ruff_cache .hypothesis tests/golden/unpacked
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the parts of lint ------------------------------------------------------------------

ruff: build .make/lint
	$(PY) -m ruff check .

cython-lint: build .make/lint
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint cext

# The types of PySpark's own are checked where it is installed: `make lint` has it, `make dev` passes them over.
mypy: build $(if $(MYPY),.make/unit,.make/test) .make/lint
	$(PY) -m mypy $(MYPY)

stubtest: build .make/test .make/lint
	MYPYPATH=engine $(PY) -m mypy.stubtest seglog --concise --mypy-config-file pyproject.toml \
		--allowlist .ci/stubtest-allowlist --ignore-unused-allowlist

# --- how the environment is made --------------------------------------------------------

.make/venv:
	@if [ -z "$(PYTHON)" ]; then \
		echo "seglog needs Python 3.11 or newer and found none (python3 is $$(python3 --version 2>&1))." >&2; \
		echo "Install one, or name one: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@$(PYTHON) .ci/preflight
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(LOCKED) pip
	@mkdir -p .make && echo '$(CURDIR)' > .make/where && touch $@

# The kernels are built with the tools of this environment, not in pip's isolated one: that one starts from nothing each time.
.make/installed: .make/venv pyproject.toml setup.py .ci/lock.txt
	$(LOCKED) build
	@# Without kernels: it would compile all of them in a folder of its own whenever one of these files changes.
	@# A banner about folders named like the package is all that would warn here.
	SEGLOG_KERNELS=0 PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps --editable .
	@touch $@

.make/kernels: .make/installed $(KERNELS)
	$(PY) setup.py --quiet build_ext --inplace
	@touch $@

# What a conversion on Spark needs: the extra, and a Java where the machine has none.
.make/java: .make/installed
	$(LOCKED) spark
	@$(PY) -c 'import sys; from seglog.spark.java import find_java; sys.exit(find_java() is None)' \
		|| $(LOCKED) java
	@touch $@

# An S3 server for `make spark`: about two minutes, once. Where it cannot be built its tests are skipped, and say so.
.make/s3: .make/venv
	@if ! command -v cargo >/dev/null; then echo "no cargo: the tests of object stores are skipped"; \
	elif cargo install --quiet --root build/s3s s3s-fs --version 0.14.1 --features binary; then touch $@; \
	else echo "s3s-fs was not built: the tests of object stores are skipped"; fi

.make/unit .make/test .make/lint .make/dist .make/connect .make/docs .make/lock: .make/installed
	$(LOCKED) $(notdir $@)
	@touch $@
