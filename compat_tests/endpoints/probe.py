"""A minimal blocking client, enough to see that a cluster serves and how long its queues are.

It shares no code with our client on purpose: the judge of a server's readiness and progress should not share code with
the server.
"""

import itertools
import json
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

SEND_MESSAGE, UPDATE_BROKER_CONFIG, GET_MAX_OFFSET, GET_ROUTE = 10, 25, 30, 105
_OPAQUES = itertools.count(1)


class ProbeRefused(Exception):
    """The server answered with a response code other than 0."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code


class Probe:
    """A connection to a namesrv or broker, with TLS if there is a context; not thread-safe."""

    def __init__(self, address: str, timeout_s: float = 3.0, tls: ssl.SSLContext | None = None) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host.strip("[]"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> tuple[dict[str, str], bytes]:
        """Send a request and return the answer's header fields and body. Raises ProbeRefused, OSError."""
        opaque = next(_OPAQUES)
        header: dict[str, Any] = {
            "code": code,
            "language": "OTHER",
            "version": 0,
            "opaque": opaque,
            "flag": 0,
        }
        header["extFields"] = dict(fields)
        head = json.dumps(header).encode()
        self._socket.sendall(struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body)
        while True:
            (total,) = struct.unpack(">I", self._receive(4))
            frame = self._receive(total)
            size = struct.unpack(">I", frame[:4])[0] & 0xFFFFFF
            answer = json.loads(frame[4 : 4 + size])
            if answer["opaque"] == opaque and answer["flag"] & 1:
                break
        if answer["code"] != 0:
            raise ProbeRefused(answer["code"], str(answer.get("remark")))
        return answer.get("extFields") or {}, frame[4 + size :]

    def ask_any(self, code: int, fields: Mapping[str, str]) -> int:
        """Send a request and return the answer's response code. Raises OSError."""
        try:
            self.ask(code, fields)
        except ProbeRefused as refused:
            return refused.code
        return 0

    def send(self, topic: str, body: bytes) -> None:
        """Send one message to queue 0 of a topic that need not exist yet."""
        fields = {
            "producerGroup": "probe",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
        }
        fields |= {
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": str(time.time_ns() // 1_000_000),
            "flag": "0",
        }
        fields |= {"properties": "", "reconsumeTimes": "0", "unitMode": "false", "batch": "false"}
        self.ask(SEND_MESSAGE, fields, body)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the queue offset that the next message will get."""
        fields, _ = self.ask(GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id), "committed": "false"})
        return int(fields["offset"])

    def update_broker_config(self, **lines: str) -> None:
        """Set keys of broker.conf."""
        self.ask(
            UPDATE_BROKER_CONFIG, {}, "".join(f"{key}={value}\n" for key, value in lines.items()).encode()
        )

    def route(self, topic: str) -> str:
        """Return the route of a topic as the JSON-like text the namesrv sent."""
        _, body = self.ask(GET_ROUTE, {"topic": topic})
        return body.decode()

    def _receive(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("closed by the server")
            data += part
        return bytes(data)


def queue_count(route: str) -> int:
    """Return the largest number of write queues that any broker has in a route."""
    # By pattern, because the official namesrv writes numeric keys without quotes, which `json` rejects.
    return max((int(number) for number in re.findall(r'"writeQueueNums"\s*:\s*(\d+)', route)), default=0)


def broker_addresses(route: str) -> list[str]:
    """Return the addresses ("host:port") of the masters in a route."""
    return re.findall(r'[{,]\s*"?0"?\s*:\s*"([^"]+:\d+)"', route)


def wait_for_route(
    namesrv: str,
    broker_port: int | None,
    timeout_s: float,
    check: Callable[[], None] = lambda: None,
    tls: ssl.SSLContext | None = None,
) -> str:
    """Wait until the namesrv routes TBW102 to a broker (with this port) that listens, and return its address.

    `check` is called between the tries and may raise. Raises RuntimeError after `timeout_s`.
    """
    end = time.monotonic() + timeout_s
    problem: Exception | None = None
    while time.monotonic() < end:
        check()
        try:
            with Probe(namesrv, tls=tls) as probe:
                addresses = broker_addresses(probe.route("TBW102"))
            addresses = [
                address for address in addresses if broker_port is None or address.endswith(f":{broker_port}")
            ]
            if addresses:
                Probe(addresses[0], tls=tls).__exit__()
                return addresses[0]
        except (OSError, ProbeRefused, ValueError) as error:
            problem = error
        time.sleep(0.01)
    raise RuntimeError(f"no route to a broker from {namesrv} in {timeout_s} s: {problem}")
