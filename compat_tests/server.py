"""The server under test as cases see it: its addresses and unique names. The package `endpoints` starts servers."""

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T")
_COUNTER = itertools.count(1)
# Several suites may run at once against one live cluster.
_RUN = f"{int(time.time()) % 0xFFFFFF:06x}{os.getpid() % 0xFFFF:04x}"


@dataclass(slots=True)
class ServerUnderTest:
    """Addresses of the server ("host:port") and a source of unique names; results list it under `label`.

    `grpc` is the address for 5.x clients, None where the server has none of its own.
    """

    label: str
    kind: str
    namesrv: str
    broker: str
    grpc: str | None = None
    groups: list[str] = field(default_factory=list)
    prefix: str = f"compat_{_RUN}_"

    def unique_name(self, what: str) -> str:
        """Return an unused name for a topic or group; all names of one run begin with `prefix`."""
        name = f"{self.prefix}{next(_COUNTER)}_{what}"
        if what == "group":
            self.groups.append(name)
        return name

    def topic_name(self, what: str = "topic") -> str:
        return self.unique_name(what)


def split_address(text: str) -> tuple[str, int]:
    """Split "host:port"."""
    host, _, port = text.rpartition(":")
    return host, int(port)


def eventually(
    probe: Callable[[], T | Literal[False] | None], timeout_s: float = 20.0, every_s: float = 0.05
) -> T:
    """Call `probe` until its result is truthy, and return that. Raises AssertionError after `timeout_s`.

    The default leaves a busy machine time, but is shorter than the 30 s after which servers repeat what they missed.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s; the last answer was {answer!r}")
        time.sleep(every_s)
