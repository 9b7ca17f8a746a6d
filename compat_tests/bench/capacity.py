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

from compat_tests.bench.loads import Figures, LoadDurations, LoadFailed, run_java_program, start_java_program
from compat_tests.bench.usage import cpu_s
from compat_tests.endpoints.ours import OursEndpoint
from remoting.blocking import BlockingClient
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.topics import TopicConfigAndMappingSerializeWrapper
from remoting.requests.namesrv import RegisterBroker

BROKER: Final = "sink"
CONNECTIONS: Final = 64
OUTSTANDING_REQUESTS: Final = (1, 16)
_FLOOD: Final = Path(__file__).with_name("java") / "FrameFlood.java"
_SINK_TIMEOUT_S: Final = 20.0


class MeasuredGateway(Protocol):
    """What is measured. `brokers`: its address for each broker of the primary, by name."""

    @property
    def brokers(self) -> dict[str, str]: ...

    def pids(self) -> list[int]: ...


def measure_capacity(
    make: Callable[[OursEndpoint, ExitStack], MeasuredGateway], durations: LoadDurations
) -> dict[int, Figures]:
    """Frames a second by 64 connections (rate), with one and with 16 that wait for their answers on each, and cores.

    ``make`` starts a gateway in front of a primary, whose namesrv is ours and whose broker answers without thinking.
    Raises LoadFailed.
    """
    with ExitStack() as stack:
        primary = stack.enter_context(OursEndpoint())
        sink = stack.enter_context(_start_sink())
        stack.enter_context(_register_sink(primary.namesrv, sink))
        gateway = make(primary, stack)
        return {
            outstanding: _measure_flood(gateway, outstanding, durations)
            for outstanding in OUTSTANDING_REQUESTS
        }


def _measure_flood(gateway: MeasuredGateway, outstanding: int, durations: LoadDurations) -> Figures:
    """The rate, and how much processor time the gateway had, the client's start included."""
    begin, used_s = time.monotonic(), cpu_s(gateway.pids())
    options = [f"to={gateway.brokers[BROKER]}", f"connections={CONNECTIONS}", f"outstanding={outstanding}"]
    figures = run_java_program(_FLOOD, "flood", *options, f"seconds={max(2, round(durations.window_s * 2))}")
    return {**figures, "cores": (cpu_s(gateway.pids()) - used_s) / (time.monotonic() - begin)}


@contextmanager
def _start_sink() -> Iterator[str]:
    with start_java_program(_FLOOD.stem, ["sink"], [_FLOOD]) as (child, _):
        end = time.monotonic() + _SINK_TIMEOUT_S
        while not child.log.read_text().endswith("}\n"):
            if child.exit_code() is not None or time.monotonic() > end:
                raise LoadFailed(f"FrameFlood does not serve\n{child.log.read_text()[-1500:]}")
            time.sleep(0.02)
        yield f"127.0.0.1:{json.loads(child.log.read_text())['port']}"


@contextmanager
def _register_sink(namesrv: str, address: str) -> Iterator[None]:
    """The sink is a broker for as long as this connection lasts (at most two minutes)."""
    body = RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper()
    ).to_json()
    request = RegisterBroker(
        broker_name=BROKER,
        broker_addr=address,
        cluster_name=BROKER,
        ha_server_addr=address,
        broker_id=0,
        compressed=False,
        body_crc32=crc32(body),
        body=body,
    )
    host, port = namesrv.rsplit(":", 1)
    with BlockingClient(host, int(port)) as client:
        client.ask(request)
        yield
