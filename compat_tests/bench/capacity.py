"""How many frames a forwarding gateway carries where neither a client nor a broker is the limit.

Not responsible for what stock clients see of it: `shadow` is.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol
from zlib import crc32

from compat_tests.bench.loads import Figures, LoadFailed, Pace, java_program
from compat_tests.bench.usage import cpu_s
from compat_tests.endpoints.ours import Ours
from compat_tests.endpoints.probe import Probe

REGISTER_BROKER: Final = 103
BROKER: Final = "sink"
CONNECTIONS: Final = 64
OUTSTANDING: Final = (1, 16)
_FLOOD: Final = Path(__file__).with_name("java") / "FrameFlood.java"
_SINK_TIMEOUT_S: Final = 20.0


class Gateway(Protocol):
    """What is measured. `brokers`: its address for each broker of the primary, by name."""

    @property
    def brokers(self) -> dict[str, str]: ...

    def pids(self) -> list[int]: ...


def capacity(make: Callable[[Ours, ExitStack], Gateway], pace: Pace) -> dict[int, Figures]:
    """Frames a second by 64 connections (rate), with one and with 16 that wait for their answers on each, and cores.

    ``make`` starts a gateway in front of a primary, whose namesrv is ours and whose broker answers without thinking.
    Raises LoadFailed.
    """
    with ExitStack() as stack:
        primary = stack.enter_context(Ours())
        sink = stack.enter_context(_sink())
        stack.enter_context(_registered(primary.namesrv, sink))
        gateway = make(primary, stack)
        return {outstanding: _flooded(gateway, outstanding, pace) for outstanding in OUTSTANDING}


def _flooded(gateway: Gateway, outstanding: int, pace: Pace) -> Figures:
    """The rate, and how much processor time the gateway had, the client's start included."""
    begin, used_s = time.monotonic(), cpu_s(gateway.pids())
    figures = _flood(gateway.brokers[BROKER], outstanding, max(2, round(pace.window_s * 2)))
    return {**figures, "cores": (cpu_s(gateway.pids()) - used_s) / (time.monotonic() - begin)}


def _flood(address: str, outstanding: int, seconds: int) -> Figures:
    options = [
        f"to={address}",
        f"connections={CONNECTIONS}",
        f"outstanding={outstanding}",
        f"seconds={seconds}",
    ]
    with java_program("FrameFlood", ["flood", *options], [_FLOOD]) as (client, _):
        if client.wait(seconds + _SINK_TIMEOUT_S) != 0:
            raise LoadFailed(f"FrameFlood failed\n{client.log.read_text()[-1500:]}")
        figures: Figures = json.loads(client.log.read_text().splitlines()[-1])
        return figures


@contextmanager
def _sink() -> Iterator[str]:
    with java_program("FrameFlood", ["sink"], [_FLOOD]) as (child, _):
        end = time.monotonic() + _SINK_TIMEOUT_S
        while not child.log.read_text().endswith("}\n"):
            if child.exit_code() is not None or time.monotonic() > end:
                raise LoadFailed(f"FrameFlood does not serve\n{child.log.read_text()[-1500:]}")
            time.sleep(0.02)
        yield f"127.0.0.1:{json.loads(child.log.read_text())['port']}"


@contextmanager
def _registered(namesrv: str, address: str) -> Iterator[None]:
    """The sink is a broker for as long as this connection lasts (at most two minutes)."""
    version = {"counter": 1, "timestamp": 1_700_000_000_000, "stateVersion": 0}
    topics = {"dataVersion": version, "topicConfigTable": {BROKER: _topic(BROKER), "Flood": _topic("Flood")}}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": topics}).encode()
    fields = {"brokerName": BROKER, "brokerAddr": address, "clusterName": "Flood", "haServerAddr": address}
    fields |= {"brokerId": "0", "compressed": "false", "bodyCrc32": str(crc32(body))}
    with Probe(namesrv) as probe:
        probe.ask(REGISTER_BROKER, fields, body)
        yield


def _topic(name: str) -> dict[str, object]:
    queues = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    return {"topicName": name, **queues, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
