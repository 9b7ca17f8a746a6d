from pathlib import Path
from typing import Any

import pytest

from acceptance.secured import ROOT, SECRET, denial, dial, run_ours
from compat_tests.clients.typed import send, topic_request
from remoting.acl import Credentials
from remoting.requests.topics import DeleteTopicInBroker
from tools.bench import security
from tools.bench.security import (
    PLAIN,
    SIGNED,
    TLS,
    WAYS,
    MeasuredWay,
    create_sender,
    median_of_ratios,
    ratio_table,
)


def measured(side: str, rates: dict[str, list[float]]) -> list[MeasuredWay]:
    nowhere: Any = None
    return [
        MeasuredWay(side, way, nowhere, [{"rate": rate, "cpu_us": 1e6 / rate} for rate in rates[way]])
        for way in WAYS
    ]


def test_ratios_are_those_of_each_round() -> None:
    """A round in which the machine was busy has half of the rates, but the same ratio."""
    plain, signed, _ = measured("ours", {PLAIN: [100, 50, 80], SIGNED: [90, 45, 40], TLS: [100, 50, 80]})
    assert median_of_ratios(signed, plain, "rate") == 0.9
    assert median_of_ratios(plain, plain, "rate") == 1.0


def test_the_table_compares_each_server_with_itself() -> None:
    ours = measured("ours", {PLAIN: [1000], SIGNED: [900], TLS: [800]})
    official = measured("official", {PLAIN: [500], SIGNED: [250], TLS: [400]})
    lines = ratio_table(ours + official).splitlines()
    assert lines[3] == "| ours | access control | 900 | 1111.1 | 0.90 | 1.11 |"
    assert lines[6] == "| official | access control | 250 | 4000.0 | 0.50 | 2.00 |"


def test_the_sender_may_publish_and_is_no_super_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "ROOT", Credentials(ROOT, SECRET))
    with run_ours(tmp_path) as process:
        create_sender(process.broker)
        with dial(process.broker, security.SENDER.access_key, security.SENDER.secret_key) as sender:
            sender.ask(topic_request("Bench_64t", 4))
            send(sender, "Bench_64t")
            denial(sender, DeleteTopicInBroker(topic="Bench_64t"))
