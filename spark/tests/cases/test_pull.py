"""Ranges of a real broker's queues read into record batches, without Spark."""

import json
import subprocess
import sys

import pyarrow as pa

from compat_tests.clients.typed import connect, create_topic, send_many, send_readable
from compat_tests.endpoints.ours import process_environment
from compat_tests.server import ServerUnderTest, split_address
from spark.endpoint import ClusterEndpoint
from spark.pull.range_reader import read_ranges
from spark.pull.read_spec import OffsetRange, ReadSpec


def test_what_was_sent_is_read(server: ServerUnderTest) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    sent = [b"%d" % number for number in range(100)]
    with connect(server.broker) as broker:
        properties = {"UNIQ_KEY": "id", "TAGS": "t", "a": "b"}
        send_many(broker, topic, sent[:-1], properties=properties)
        send_readable(broker, topic, sent[-1], properties=properties)
    spec = ReadSpec(ClusterEndpoint((split_address(server.namesrv),)))
    table = pa.Table.from_batches(
        read_ranges(spec, [OffsetRange(topic, "broker", split_address(server.broker), 0, 0, 100)]),
        spec.arrow_schema(),
    )
    # an official broker stores what arrives before an earlier answer in any order
    assert sorted(table["body"].to_pylist()) == sorted(sent)
    assert table["queueOffset"].to_pylist() == list(range(100))
    assert set(table["tags"].to_pylist()) == {"t"}


LARGE, LARGE_BYTES = 96, 4_000_000
READER = """
import json, resource, sys
from spark.endpoint import ClusterEndpoint
from spark.pull.range_reader import read_ranges
from spark.pull.read_spec import OffsetRange, ReadSpec

given = json.loads(sys.argv[1])
spec = ReadSpec(ClusterEndpoint((tuple(given["namesrv"]),)))
queue = given["topic"], "broker", tuple(given["broker"]), 0
for _ in read_ranges(spec, [OffsetRange(*queue, 0, 1)]):
    pass
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = sum(batch.nbytes for batch in read_ranges(spec, [OffsetRange(*queue, 0, given["count"])]))
print(json.dumps([total, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)]))
"""


def test_memory_is_bounded_with_the_largest_messages(server: ServerUnderTest) -> None:
    """400 MB pass in some 70 MiB (docs/explanation/spark-performance.md); the bound leaves room for the allocator."""
    topic = server.topic_name()
    create_topic(server, topic, 1)
    with connect(server.broker, timeout_s=60) as broker:
        for _ in range(LARGE):
            send_readable(broker, topic, bytes(LARGE_BYTES))
    given = {
        "namesrv": split_address(server.namesrv),
        "broker": split_address(server.broker),
        "topic": topic,
        "count": LARGE,
    }
    command = [sys.executable, "-c", READER, json.dumps(given)]
    done = subprocess.run(command, env=process_environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    total, grown = json.loads(done.stdout)
    assert total > LARGE * LARGE_BYTES
    assert grown < 160 << 20
