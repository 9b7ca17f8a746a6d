# rocketmq-gateway: `make serve` runs it, `make test` tests it. Each makes its own environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := codec remoting storage gateway compat_tests spark
UNIT := codec remoting storage gateway compat_tests/tests spark
INTERCHANGE := storage/tests/test_interchange.py
SPARK_CASES := spark/tests/cases
JARS := from compat_tests.jars import ensure
ARGS ?=
# IMAGE=no leaves out the tests against the official container image.
IMAGE ?= yes
IMAGE_CASES := wire protocol send pull namesrv java_send
# What could differ behind the shadow gateway: the wire, addresses and ids, questions of the broker, stock clients.
SHADOW_CASES := wire protocol namesrv send pull query heartbeat replies retry locks topics offsets bodies filters ordered pop transactions not_served java_admin java_consume go clients

.PHONY: serve test tests check archives unit interchange lint format types compat compat-ours compat-official compat-both compat-shadow compat-image restarts-ours restarts-official spark-ours spark-kills spark-official spark-delta spark-env bench bench-shadow bench-isolation bench-spark clean

serve: $(VENV)/serve
	$(BIN)/rmq-gateway serve $(ARGS)

# Everything: checks, unit and simulation tests, the conformance suite on our server and on the official one, and Spark's.
# What needs Java, Maven, Go, Node or Docker is skipped with its reason where that is missing; CI=true forbids skips.
# Most runs wait as much as they compute: several go at a time, each with servers of its own, and its output in one piece
# at its end.
test: $(VENV)/dev
	@echo "Several runs go at a time, of unit tests, of cases on each endpoint, of Spark; each prints when it is done."
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=target tests

# They begin in this order: the longest first, and those that wait at their end beside Spark's, which compute. `spark-delta`
# is left out, for its second environment.
tests: lint types archives unit compat-both compat-official compat-ours spark-ours restarts-official compat-shadow \
  spark-kills spark-official restarts-ours interchange $(if $(filter no,$(IMAGE)),,compat-image)

check: lint types unit

# Official servers start sooner with it.
archives: $(VENV)/dev
	$(BIN)/python -m compat_tests.archives

lint: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(VENV)/dev
	$(BIN)/mypy $(PACKAGES)

unit: $(VENV)/dev
	$(BIN)/python -m pytest $(UNIT) --ignore $(INTERCHANGE) --ignore $(SPARK_CASES) --numprocesses auto $(ARGS)

# The store's files, in turns with the official broker.
interchange: $(VENV)/dev
	ROCKETMQ_OFFICIAL_LIB="$$($(BIN)/python -c "$(JARS); print(ensure('server-5.4'))" 2>/dev/null)" \
	  $(BIN)/python -m pytest $(INTERCHANGE) $(ARGS)

compat: $(VENV)/dev
	$(BIN)/python -m pytest compat_tests/cases --endpoint ours $(ARGS)

# A run of the conformance suite, and a second one, on a new server, of what failed in it. JVMs on a busy machine are late at
# times, and the official server does much behind its answers. Both are shown: a case that needs its second try is a
# defect to look into, one that fails twice fails the build.
AGAIN := --last-failed --last-failed-no-failures=none
CASES = $(BIN)/python -m pytest compat_tests/cases -o cache_dir=.pytest_cache/$@
# Cases wait most of the time, so two files go at once on one server; what changes its settings is in one file. Those
# that stop it have one of their own, one by one.
TWO_FILES := --numprocesses 2 --dist loadfile
FOUR_FILES := --numprocesses 4 --dist loadfile
SHARED := -m "not stops_server and not both_servers" $(TWO_FILES)
STOPPING := -m stops_server

compat-ours: $(VENV)/dev
	$(CASES) --endpoint ours $(SHARED) $(ARGS) || $(CASES) --endpoint ours $(AGAIN)

compat-official: $(VENV)/dev
	$(CASES) --endpoint official $(SHARED) $(ARGS) || $(CASES) --endpoint official $(AGAIN)

restarts-ours: $(VENV)/dev
	$(CASES) --endpoint ours $(STOPPING) $(ARGS) || $(CASES) --endpoint ours $(AGAIN)

restarts-official: $(VENV)/dev
	$(CASES) --endpoint official $(STOPPING) $(ARGS) || $(CASES) --endpoint official $(AGAIN)

# Ours with official brokers beside it, which each file starts for itself: the longest run, so four files at once.
compat-both: $(VENV)/dev
	$(CASES) --endpoint ours -m both_servers $(FOUR_FILES) $(ARGS) || $(CASES) --endpoint ours $(AGAIN)

SHADOWED = $(BIN)/python -m pytest $(addprefix compat_tests/cases/test_,$(addsuffix .py,$(SHADOW_CASES))) \
  --endpoint shadow -o cache_dir=.pytest_cache/$@

# The official server behind the shadow gateway. The whole suite runs through it as well.
compat-shadow: $(VENV)/dev
	$(SHADOWED) $(TWO_FILES) $(ARGS) || $(SHADOWED) $(AGAIN)

IN_IMAGE = $(BIN)/python -m pytest $(addprefix compat_tests/cases/test_,$(addsuffix .py,$(IMAGE_CASES))) \
  --endpoint image -o cache_dir=.pytest_cache/$@

# What could differ in a container: addresses, the wire, stock clients. The whole suite runs against it as well.
compat-image: $(VENV)/dev
	$(IN_IMAGE) $(ARGS) || $(IN_IMAGE) $(AGAIN)

# Delta through delta-spark, which wants an older pyspark than the newest, and the source with it: an environment of its own.
DELTA := .venv-delta
SPARK_DELTA = $(DELTA)/bin/python -m pytest $(addprefix $(SPARK_CASES)/test_,delta_spark.py source.py source_stream.py) -o cache_dir=.pytest_cache/$@

$(DELTA)/dev: pyproject.toml | $(VENV)/bin/python
	$(PYTHON) -m venv $(DELTA)
	$(DELTA)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' \
	  pyspark==4.2.0 delta-spark==4.4.0
	@touch $@

spark-delta: $(DELTA)/dev
	$(SPARK_DELTA) --endpoint ours $(ARGS) || $(SPARK_DELTA) --endpoint ours $(AGAIN)

# What executors need besides pyspark, in one archive: --archives dist/spark-env.tar.gz#environment. ARGS adds packages.
spark-env: $(VENV)/dev
	$(BIN)/python -m spark.session.packing dist/spark-env.tar.gz $(ARGS)

# What Spark does with each server. Cases about our own processes, clusters among them, run with ours only.
SPARKED = $(BIN)/python -m pytest -o cache_dir=.pytest_cache/$@
KILLS := $(addprefix $(SPARK_CASES)/test_,kills.py sink_kills.py)

spark-ours: $(VENV)/dev
	$(SPARKED) $(SPARK_CASES) --endpoint ours $(addprefix --ignore=,$(KILLS)) $(ARGS) || $(SPARKED) $(SPARK_CASES) --endpoint ours $(AGAIN)

# Drivers, executors and brokers killed at random moments, which takes half as long as all others together.
spark-kills: $(VENV)/dev
	$(SPARKED) $(KILLS) --endpoint ours $(ARGS) || $(SPARKED) $(KILLS) --endpoint ours $(AGAIN)

spark-official: $(VENV)/dev
	$(SPARKED) $(SPARK_CASES) --endpoint official $(ARGS) || $(SPARKED) $(SPARK_CASES) --endpoint official $(AGAIN)

bench: $(VENV)/dev
	$(COMPILED)
	$(BIN)/python -m compat_tests.bench $(ARGS)

# What the shadow gateway costs in front of the official broker.
bench-shadow: $(VENV)/dev
	$(BIN)/python -m compat_tests.bench.shadow $(ARGS)

# What a mirror takes from the primary's clients, with a healthy target and with such as fail, and the mirrors' counts.
bench-isolation: $(VENV)/dev
	$(BIN)/python -m compat_tests.bench.isolation $(ARGS)

# What reading with Spark costs, by stages; ARGS="--endpoint official --markdown x.md".
bench-spark: $(VENV)/dev
	$(BIN)/python -m spark.bench $(ARGS)

# As pip does with what it copies. Otherwise each start compiles what it imports where PYTHONDONTWRITEBYTECODE is set.
COMPILED := $(BIN)/python -m compileall -q $(PACKAGES)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/serve: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	$(COMPILED)
	@touch $@

$(VENV)/dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(COMPILED)
	@touch $@ $(VENV)/serve

clean:
	rm -rf $(VENV) $(DELTA) dist .mypy_cache .ruff_cache .pytest_cache build *.egg-info
