# rocketmq-gateway: `make serve` runs it, `make test` tests it. Each makes its own environment in .venv.
#
#   make serve ARGS="--memory"         flags for the server
#   make native                        the C extension alone, with the compiler's messages if it fails
#   make run RUN=compat-ours ARGS="-k pull"   one run of the test matrix; `make runs` lists them
#   make fuzz SEED=7 FRAMES=1000000    mutated requests against namesrv, broker and shadow gateway
#   make laws SEEDS=5000               random stories of a store, its crashes and its threads
#   make planted                       defects planted into copies of the tree: the tests must notice
#   make simulate SEEDS=10000          stories of brokers and controllers on virtual time
#   make planted-replication           defects of both: the simulations must notice
#   make planted-deviations            deviations from the protocol: the conformance cases must notice
#   make pairings                      masters and slaves of every kind as processes, through faults (as root)
#   make failovers                     groups of three brokers under controllers, through faults (as root)
#   make rolling-restarts              replicas restarted under every kind of controllers and clients
#   make e2e                           Apache's own tests of 5.x clients, here and officially
#   make native-fuzz FRAMES=10000000   the same frames to brokers with and without native sends
#   make native-sanitizers             the same, with AddressSanitizer and UndefinedBehaviorSanitizer
#   make planted-native                defects of the C sources: these tests must notice
#   make power-cut ROUNDS=10           power cuts under a broker that is sent messages (as root)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DELTA := .venv-delta
RUN_TESTS := $(BIN)/python scripts/run_tests.py
BUILD_WHEELS := $(BIN)/python scripts/build_wheels.py
# What an editable install is made of, besides what it links to.
BUILT_FROM := pyproject.toml setup.py $(wildcard native/*.[ch])
PACKAGES := codec remoting storage toolkit gateway compat_tests acceptance spark tools
ARGS ?=
SEED ?= 1
FRAMES ?= 100000
ROUNDS ?= 5
SEEDS ?= 2000
AGAINST ?= all
# IMAGE=no leaves out the cases against the official container image.
IMAGE ?= yes
# pip compiles what it copies; an editable install is compiled here, so that no start has to do it.
COMPILE := $(BIN)/python -m compileall -q $(PACKAGES)
MORE = $(if $(ARGS),-- $(ARGS))

.PHONY: serve native wheel wheels image test check runs run unit types lint format compat compat-official compat-image spark-delta spark-env fuzz laws simulate planted planted-replication planted-deviations planted-native native-fuzz native-sanitizers power-cut pairings e2e failovers rolling-restarts \
  bench bench-shadow bench-grpc bench-isolation bench-processes bench-replication bench-scale bench-security bench-upkeep bench-spark docs docs-serve clean

serve: $(VENV)/serve
	@echo "The command is $(BIN)/rmq-gateway; \". $(BIN)/activate\" makes it rmq-gateway in this shell."
	$(BIN)/rmq-gateway serve $(ARGS)

# Without a compiler everything else is installed, and the server does the same work in Python: docs/how-to/serve.md#with-and-without-the-c-extension
native: $(VENV)/bin/python
	ROCKETMQ_NATIVE=require $(BIN)/python $(INSTALL) --no-deps .

# A wheel in dist/ for any machine: pip install 'dist/rocketmq_gateway-0.1.0-py3-none-any.whl[spark]'
wheel: $(VENV)/bin/python
	$(BUILD_WHEELS) pure

# That wheel, one with the C extension for Linux machines of this kind, and the sources
wheels: $(VENV)/bin/python
	$(BUILD_WHEELS) pure native sources

# The container image rocketmq-gateway; ARGS="--tag NAME --base IMAGE --offline"
image: $(VENV)/bin/python
	$(BIN)/python scripts/build_image.py $(ARGS)

# The whole matrix. Runs that lack Java, Maven, Go, Node or Docker skip with the reason; CI=true forbids skips.
test: $(VENV)/dev
	$(RUN_TESTS) all $(if $(filter no,$(IMAGE)),--without compat-image) $(MORE)

# Formatting, lint, types, readability and unit tests; without those of Spark, which `make test` adds.
check: $(VENV)/check
	$(RUN_TESTS) check $(MORE)

runs: $(VENV)/dev
	@$(RUN_TESTS)

run: $(VENV)/dev
	$(RUN_TESTS) $(RUN) $(MORE)

unit types lint: $(VENV)/check
	$(RUN_TESTS) $@ $(MORE)

format: $(VENV)/check
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

compat: $(VENV)/dev
	$(BIN)/python -m pytest compat_tests/cases acceptance --endpoint ours $(ARGS)

compat-official compat-image: $(VENV)/dev
	$(BIN)/python -m pytest compat_tests/cases --endpoint $(@:compat-%=%) $(ARGS)

# What must never happen, whatever arrives: docs/how-to/fuzz.md
fuzz: $(VENV)/dev
	$(BIN)/python -m tools.fuzz --seed $(SEED) --frames $(FRAMES) --against $(AGAINST) $(ARGS)

# The laws of the store in long: docs/explanation/store-laws.md
laws: $(VENV)/dev
	LAWS_SEEDS=$(SEEDS) $(BIN)/python -m pytest storage/tests/test_store_model.py storage/tests/test_store_interleaving.py \
	  storage/tests/test_replica_stories.py \
	  gateway/broker/assembly/tests/test_build_stories.py gateway/broker/transactions/tests/test_transactions_stories.py \
	  gateway/broker/pop/tests/test_reviver_stories.py $(ARGS)

planted: $(VENV)/dev
	$(BIN)/python -m storage.tests.planting $(ARGS)

# Brokers, controllers, and brokers under controllers, on virtual time: docs/explanation/replication-laws.md and controller-laws.md
simulate: $(VENV)/dev
	$(BIN)/python -m gateway.broker.replication.tests.simulation --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m gateway.controller.tests.simulation --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m gateway.broker.replication.tests.controlled_simulation --seeds $(SEEDS) $(ARGS)

planted-replication: $(VENV)/dev
	$(BIN)/python -m gateway.broker.replication.tests.planting $(ARGS)
	$(BIN)/python -m gateway.controller.tests.planting $(ARGS)

# The same with deviations from the protocol, which conformance cases must notice: compat_tests/README.md
planted-deviations: $(VENV)/dev
	$(BIN)/python -m compat_tests.tests.planting $(ARGS)

# Native sends against Python's: docs/explanation/native-sends.md
native-fuzz: $(VENV)/dev
	$(BIN)/python -m gateway.tests.native_sends --seed $(SEED) --frames $(FRAMES) $(ARGS)

native-sanitizers: $(VENV)/dev
	$(BIN)/python -m gateway.tests.native_sends.sanitized --frames $(FRAMES) $(ARGS)

planted-native: $(VENV)/dev
	$(BIN)/python -m gateway.tests.native_sends.planting $(ARGS)

# Power cuts under our broker and the official one, on a loop device; needs Linux and root
power-cut: $(VENV)/dev
	$(BIN)/python -m tools.power_cut --rounds $(ROUNDS) $(ARGS)

# Delta tables through delta-spark, which needs an older pyspark: an environment of its own, not part of `make test`.
spark-delta: $(DELTA)/dev
	$(DELTA)/bin/python -m pytest $(addprefix spark/tests/cases/test_,delta_spark.py source.py source_stream.py) \
	  -o cache_dir=.pytest_cache/$@ --endpoint ours $(ARGS)

# The Python environment of Spark executors as one archive: --archives dist/spark-env.tar.gz#environment
spark-env: $(VENV)/dev
	$(BIN)/python -m spark.session.packing dist/spark-env.tar.gz $(ARGS)

# Official brokers and ours as master and slave of each other; needs Java, and root for a link that drops packets
pairings: $(VENV)/dev
	$(BIN)/python -m tools.pairings $(ARGS)

# Three brokers of every kind under every kind of controllers, through faults; needs Java, etcd, and root for partitions
failovers: $(VENV)/dev
	$(BIN)/python -m tools.failovers $(ARGS)

# Three replicas restarted one after the other under every kind of controllers; needs Java and etcd. About 15 minutes
rolling-restarts: $(VENV)/dev
	ROLLING_RESTARTS=all $(BIN)/python -m pytest acceptance/test_rolling_restart.py --endpoint ours $(ARGS)

# The gRPC tests of apache/rocketmq-e2e against this server and the official one; needs Java, Maven and git
e2e: $(VENV)/dev
	$(BIN)/python -m tools.foreign_suite $(ARGS)

bench: $(VENV)/dev
	$(COMPILE)
	$(BIN)/python -m tools.bench $(ARGS)

bench-grpc bench-shadow bench-isolation bench-replication bench-scale bench-security bench-upkeep: $(VENV)/dev
	$(BIN)/python -m tools.bench.$(@:bench-%=%) $(ARGS)

bench-processes: $(VENV)/dev
	$(BIN)/python -m tools.bench.broker_processes $(ARGS)

bench-spark: $(VENV)/dev
	$(BIN)/python -m tools.bench_spark $(ARGS)

# The documentation site, in site/; broken links fail.
docs: $(VENV)/dev
	$(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/dev
	$(BIN)/python -m mkdocs serve

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

INSTALL = -m pip install --quiet --disable-pip-version-check --editable

$(VENV)/serve: $(BUILT_FROM) | $(VENV)/bin/python
	$(BIN)/python $(INSTALL) .
	$(COMPILE)
	@touch $@

$(VENV)/check: $(BUILT_FROM) | $(VENV)/bin/python
	$(BIN)/python $(INSTALL) '.[check]'
	$(COMPILE)
	@touch $@ $(VENV)/serve

$(VENV)/dev: $(BUILT_FROM) | $(VENV)/bin/python
	$(BIN)/python $(INSTALL) '.[dev]'
	$(COMPILE)
	@touch $@ $(VENV)/check $(VENV)/serve

$(DELTA)/dev: pyproject.toml | $(VENV)/bin/python
	$(PYTHON) -m venv $(DELTA)
	$(DELTA)/bin/python $(INSTALL) '.[dev]' pyspark==4.2.0 delta-spark==4.4.0
	@touch $@

clean:
	rm -rf $(VENV) $(DELTA) .build dist site .mypy_cache .ruff_cache .pytest_cache build *.egg-info
