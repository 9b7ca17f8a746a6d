"""The pipeline `profile` on capture files of the gateway's own writer, on mirrored traffic, and on a live endpoint."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from compat_tests.clients.typed import connect, create_topic, send
from compat_tests.server import ServerUnderTest
from gateway.shadow.capture.files import DiskFolder
from gateway.shadow.capture.rotation import RotatedFiles
from gateway.shadow.capture.settings import CaptureSettings
from spark import register
from spark.pipelines.config import load_config
from spark.pipelines.job import Job
from spark.pipelines.profile import PIPELINE
from spark.tests.captures import EPOCH_MS, batch_send, pull, stored
from spark.tests.captures import send as captured
from spark.tests.cases.mirrored import BILLS, ORDERS, Mirrored


def profiled(spark: SparkSession, folder: Path, **sets: str) -> dict[str, Any]:
    register(spark)
    texts = {"profile.json": folder / "profile.json", "profile.html": folder / "profile.html", **sets}
    config = load_config(PIPELINE.tables, None, [f"{name}={value}" for name, value in texts.items()])
    summary = PIPELINE.run(Job(spark, config, Console(stderr=True)))
    assert summary.exit_code == 0
    html = (folder / "profile.html").read_text()
    assert html.endswith("</html>\n")
    assert html.count("<svg") >= 4
    return json.loads((folder / "profile.json").read_text())


@pytest.mark.ours_only
def test_of_captured_traffic(spark: SparkSession, tmp_path: Path) -> None:
    """600 sends of two topics, keys and queues unequal, some refused; retries, dead letters, pulls, send-backs."""
    records = []
    for number in range(600):
        topic = "orders" if number % 3 else "bills"
        key = {"KEYS": "k", "__SHARDINGKEY": "hot" if number % 2 else f"key-{number % 10}"}
        refused = 14 if number % 100 == 7 else 0
        at_ms = EPOCH_MS + 100 * number
        records.append(
            captured(
                number,
                topic,
                queue=0 if number % 6 < 3 else number % 4,
                at_ms=at_ms,
                born_ms=at_ms - 5,
                properties=key,
                body=bytes(100 + number % 3),
                answer=refused,
                answered_us=1000 * (1 + number % 10),
            )
        )
    records.append(batch_send(600)._replace(wall_ms=EPOCH_MS + 60_000))
    for count, topic in ((5, "%RETRY%billing"), (2, "%DLQ%billing")):
        records += [captured(number, topic, at_ms=EPOCH_MS + number) for number in range(count)]
    records += [pull(number, [stored(number)])._replace(wall_ms=EPOCH_MS) for number in range(10)]
    folder = tmp_path / "captures"
    settings = CaptureSettings(directory=str(folder), block_bytes=16 * 1024, reserve_bytes=0)
    files = RotatedFiles(settings, DiskFolder(str(folder)), "gw", 7, lambda: int(time.time() * 1000))
    for record in records:
        files.add_record(record)
    files.close()

    found = profiled(
        spark, tmp_path, **{"capture.path": str(folder), "profile.topics": "3", "profile.keys": "2"}
    )
    messages, exchanges = found["messages"], found["exchanges"]
    accepted = [number for number in range(600) if number % 100 != 7]
    assert messages["messages"] == len(accepted) + 3 + 5 + 2
    topics = {each["topic"]: each for each in messages["topics"]}
    assert [each["topic"] for each in messages["topics"]] == ["orders", "bills", "%RETRY%billing", "(others)"]
    assert topics["bills"]["messages"] == sum(number % 3 == 0 for number in accepted)
    assert topics["bills"]["size_bytes"] == {"p50": 100, "p90": 100, "p99": 100, "max": 100}
    assert topics["bills"]["delay_ms"]["p50"] == 5
    keys = Counter("hot" if n % 2 else f"key-{n % 10}" for n in accepted if n % 3 == 0)
    assert topics["bills"]["keys"]["distinct"] == len(keys) == 6
    assert topics["bills"]["keys"]["top"][0] == {"key": "hot", "messages": keys["hot"]}
    assert len(topics["bills"]["keys"]["top"]) == 2
    assert topics["bills"]["keys"]["gini"] == pytest.approx(gini(list(keys.values())))
    queues = Counter(0 if n % 6 < 3 else n % 4 for n in accepted if n % 3 == 0)
    # Queue 2 is empty; it is one of the topic's queues all the same.
    assert (max(queues), len(queues)) == (3, 3)
    assert topics["bills"]["queues"]["max_over_mean"] == pytest.approx(
        max(queues.values()) * 4 / queues.total()
    )
    in_all = (
        sum(map(sum, (each["rates"]["messages_per_s"] for each in messages["topics"]))) * messages["step_s"]
    )
    assert in_all == pytest.approx(messages["messages"])
    assert messages["retries"]["retry"] == {"messages": 5, "share": 5 / messages["messages"]}
    assert messages["retries"]["dead"]["messages"] == 2
    assert {(each["kind"], each["group"]) for each in messages["retries"]["by_group"]} == {
        ("retry", "billing"),
        ("dead", "billing"),
    }
    assert exchanges["exchanges"] == len(records)
    assert (exchanges["sends"]["count"], exchanges["sends"]["refused"]) == (608, 6)
    assert exchanges["sends"]["latency_us"]["primary"]["max"] == 10_000
    assert 5000 <= exchanges["sends"]["latency_us"]["primary"]["p50"] <= 6000
    # The answers of captures made by hand are the same on both sides but for the refusals.
    assert exchanges["answers"] == [
        {
            "side": "client",
            "request": "SEND_MESSAGE_V2",
            "code": 14,
            "name": "SERVICE_NOT_AVAILABLE",
            "count": 6,
        }
    ]
    assert {each["name"]: each["count"] for each in exchanges["requests"]} == {
        "SEND_MESSAGE_V2": 607,
        "SEND_BATCH_MESSAGE": 1,
        "PULL_MESSAGE": 10,
    }
    assert sum(each["requests"] for each in exchanges["clients"]) == len(records)


def test_of_a_live_endpoint(spark: SparkSession, server: ServerUnderTest, tmp_path: Path) -> None:
    topic = server.topic_name()
    create_topic(server, topic, 4)
    with connect(server.broker) as broker:
        for number in range(30):
            properties = {"UNIQ_KEY": f"ID{number}", "KEYS": f"key-{number % 3}"}
            send(broker, topic, bytes(10 + number), queue_id=number % 2, properties=properties)
    found = profiled(spark, tmp_path, **{"source.nameServer": server.namesrv, "source.subscribe": topic})
    assert found["exchanges"] is None
    (only,) = found["messages"]["topics"]
    assert (only["topic"], only["messages"], only["bytes"]) == (topic, 30, sum(range(10, 40)))
    assert (only["size_bytes"]["max"], only["keys"]["distinct"], only["queues"]["seen"]) == (39, 3, 2)
    assert only["keys"]["gini"] == 0
    queues = only["queues"]
    assert (queues["queues"], queues["gini"], queues["max_over_mean"]) == (4, 0.5, 2), "two of four are empty"


@pytest.mark.both_servers
def test_of_mirrored_traffic(spark: SparkSession, traffic: Mirrored, tmp_path: Path) -> None:
    """An official primary's, as the gateway captured it: what was sent is what the primary has."""
    found = profiled(spark, tmp_path, **{"capture.path": str(traffic.captures)})
    topics = {each["topic"]: each for each in found["messages"]["topics"]}
    for topic in (ORDERS, BILLS):
        stored = traffic.stored(traffic.primary.broker, topic)
        assert topics[topic]["messages"] == len(stored)
        keys = {each.properties.get("__SHARDINGKEY") or each.properties["KEYS"] for each in stored}
        assert topics[topic]["keys"]["distinct"] == len(keys)
        by_queue = Counter(each.queue_id for each in stored)
        assert topics[topic]["queues"]["seen"] == len(by_queue)
        most = max(by_queue.values()) * (max(by_queue) + 1) / len(stored)
        assert topics[topic]["queues"]["max_over_mean"] == pytest.approx(most)
    exchanges = found["exchanges"]
    assert exchanges["sends"]["refused"] == 0
    latency_us = exchanges["sends"]["latency_us"]["primary"]
    assert 0 < latency_us["p50"] <= latency_us["max"]


def gini(counts: list[int]) -> float:
    """By its definition: the mean difference of all pairs, against twice the mean."""
    pairs = sum(abs(one - other) for one in counts for other in counts)
    return pairs / (2 * len(counts) * sum(counts))
