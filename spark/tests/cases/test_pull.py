"""Ranges of a real broker's queues read into record batches, without Spark."""

import pyarrow as pa

from compat_tests.clients.typed import all_of, connect, create_topic, send_many
from compat_tests.server import Server, address, eventually
from spark.endpoint import Endpoint
from spark.pull.read import read_ranges
from spark.pull.spec import Range, ReadSpec


def test_what_was_sent_is_read(server: Server) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 1)
    sent = [b"%d" % number for number in range(100)]
    with connect(server.broker) as broker:
        send_many(broker, topic, sent, properties={"UNIQ_KEY": "id", "TAGS": "t", "a": "b"})
        eventually(lambda: len([*all_of(broker, topic, 0)]) == len(sent))
    spec = ReadSpec(Endpoint((address(server.namesrv),)))
    table = pa.Table.from_batches(
        read_ranges(spec, [Range(topic, "broker", address(server.broker), 0, 0, 100)]), spec.arrow_schema()
    )
    # an official broker stores what arrives before an earlier answer in any order
    assert sorted(table["body"].to_pylist()) == sorted(sent)
    assert table["queueOffset"].to_pylist() == list(range(100))
    assert set(table["tags"].to_pylist()) == {"t"}
