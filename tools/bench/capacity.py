"""Measures how many frames per second a forwarding gateway carries if neither client nor broker is the bottleneck.

`FrameFlood` (Java) is both ends: a client that floods and a broker that answers without thinking.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol
from zlib import crc32

from compat_tests.endpoints.ours import OursEndpoint
from remoting.blocking import BlockingClient
from remoting.bodies.registration import RegisterBrokerBody
from remoting.bodies.topics import TopicConfigAndMappingSerializeWrapper
from remoting.requests.namesrv import RegisterBroker
from tools.bench.loads import Figures, LoadDurations, LoadFailed, run_java_program, start_java_program
from tools.bench.usage import cpu_s

BROKER: Final = "sink"
CONNECTIONS: Final = 64
OUTSTANDING_REQUESTS: Final = (1, 16)
_FLOOD: Final = Path(__file__).with_name("java") / "FrameFlood.java"
_SINK_TIMEOUT_S: Final = 20.0


class MeasuredGateway(Protocol):
    """The gateway to measure. `brokers` maps the primary's broker names to the gateway's addresses for them."""

    @property
    def brokers(self) -> dict[str, str]: ...

    def pids(self) -> list[int]: ...


def measure_capacity(
    make: Callable[[OursEndpoint, ExitStack], MeasuredGateway], durations: LoadDurations
) -> dict[int, Figures]:
    """Return frames per second and cores used with 64 connections, by outstanding requests per connection (1 and 16).

    ``make`` starts a gateway in front of a primary, whose namesrv is ours and whose broker is `FrameFlood`. Raises
    LoadFailed.
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
    """Return the rate, and the gateway's cores over the whole run, including the client's start."""
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
    """Register the sink as a broker for as long as this connection lasts (at most two minutes)."""
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
