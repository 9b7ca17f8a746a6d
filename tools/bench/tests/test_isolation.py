import os
import time
from contextlib import ExitStack

import pytest

from codec.command import Command
from remoting.blocking import BlockingClient
from remoting.errors import RemotingClosed, RemotingTimeout
from remoting.requests.namesrv import GetBrokerClusterInfo, GetRouteInfoByTopic
from tools.bench.faulty_target import ANSWER_DELAY_S, BROKER
from tools.bench.isolation import (
    OFF,
    TABLE_HEAD,
    MirrorCounts,
    format_row,
    median_ratios,
    parse_mirror_counts,
    start_faulty_target,
)
from tools.bench.shadow import MeasuredSetup


@pytest.fixture
def started(tmp_path):
    """A function that starts a target with a fault and returns its broker's host and port from its namesrv."""
    with ExitStack() as stack:

        def start(fault):
            host, port = start_faulty_target(fault, tmp_path, stack).split(":")
            with BlockingClient(host, int(port)) as namesrv:
                info = namesrv.ask(GetBrokerClusterInfo()).data
                route = namesrv.ask(GetRouteInfoByTopic(topic="any")).data
            assert route.broker_datas == [info.broker_addr_table[BROKER]]
            host, port = info.broker_addr_table[BROKER].broker_addrs[0].split(":")
            return host, int(port)

        yield start


def asked(place, timeout_s=5.0):
    with BlockingClient(*place, timeout_s=timeout_s) as broker:
        return broker.send_command(Command(310, 1))


@pytest.mark.parametrize(("fault", "code"), [("refusing", 16), ("full", 14)])
def test_a_broker_refuses(started, fault, code):
    assert asked(started(fault)).code == code


def test_a_slow_broker_answers_late(started):
    place, began = started("slow"), time.monotonic()
    assert asked(place).code == 2
    assert time.monotonic() - began >= ANSWER_DELAY_S


def test_brokers_that_say_nothing_sensible(started):
    with pytest.raises(RemotingTimeout):
        asked(started("stalled"), 0.2)
    with pytest.raises((RemotingClosed, RemotingTimeout, OSError, ValueError)):
        asked(started("garbage"), 2.0)
    with pytest.raises(RemotingClosed, match="refused"):
        asked(started("gone"))


class Me:
    """This process in place of a gateway's."""

    def pids(self):
        return [os.getpid()]


def side(name, *samples):
    names = "rate", "p50_ms", "p99_ms", "cpu_us"
    measured = [dict(zip(names, each, strict=True)) for each in samples]
    # Only `pids` of a child process is used.
    return MeasuredSetup(name, "", "", [Me()], measured)  # type: ignore[list-item]


def test_ratios_are_taken_round_by_round():
    off = side(OFF, (1000, 1.0, 2.0, 9), (500, 2.0, 4.0, 9), (100, 9.0, 20.0, 9))
    slower = side("stalled", (900, 1.1, 2.0, 9), (450, 2.2, 4.0, 9), (90, 9.9, 20.0, 9))
    assert median_ratios(slower, off) == pytest.approx({"rate": 0.9, "p50_ms": 1.1, "p99_ms": 1.0})
    first, second = format_row(off, off, None), format_row(slower, off, MirrorCounts(3, 1, 1, 1, 0, 0))
    assert first.endswith("| 1.000 | 1.000 | 1.000 | yes | - |")
    assert second.endswith("| 0.900 | 1.100 | 1.000 | **no** | 3 = 1 + 1 + 1 + 0 + 0 |")
    assert first.count("|") == second.count("|") == TABLE_HEAD.count("|")


def test_the_law_is_over_all_streams():
    text = """
# TYPE rocketmq_shadow_mirror_observed_total counter
rocketmq_shadow_mirror_observed_total{mirror="a",broker="x"} 10.0
rocketmq_shadow_mirror_observed_total{mirror="a",broker="y"} 1e+06
rocketmq_shadow_mirror_mirrored_total{mirror="a",broker="y"} 1e+06
rocketmq_shadow_mirror_dropped_total{mirror="a",broker="x"} 6.0
rocketmq_shadow_mirror_queued{mirror="a",broker="x"} 3.0
rocketmq_shadow_mirror_queued_bytes{mirror="a",broker="x"} 77.0
"""
    law = parse_mirror_counts(text)
    assert (law, law.add_up) == (MirrorCounts(1_000_010, 1_000_000, 0, 0, 6, 3), False)
    assert parse_mirror_counts(text.replace(" 6.0", " 7.0")).add_up
    assert not parse_mirror_counts("").add_up
