"""A relay in front of a target that loses, repeats, holds, reorders and changes the messages it is told to.

It has addresses of its own for the target's namesrv and broker, and routes that pass through it name those. Whoever
sends through it believes that everything was stored. `mirrored.py` decides which faults are planted.
"""

import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from codec.command import Command, encode_command
from codec.frames import FrameSplitter
from codec.properties import decode_properties, properties_text
from compat_tests.server import split_address

SENDS = {10: ("properties", "queueId"), 310: ("i", "e")}
"""Codes of sends, with the names of their fields for properties and queue."""
_OURS = 1 << 29
"""First opaque of the relay's own requests."""


@dataclass
class Plan:
    """Planned faults of single messages, by unique key. Bodies are as on the wire."""

    lost: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)
    """Messages stored twice in a row."""
    bodies: dict[str, bytes] = field(default_factory=dict)
    properties: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """New values of properties; None removes the property."""
    flags: dict[str, int] = field(default_factory=dict)
    """System flags of bodies sent in another form."""
    behind: dict[str, str] = field(default_factory=dict)
    """Messages stored only after another one, by unique keys."""
    held: set[str] = field(default_factory=set)
    """Messages held until `Relay.release`."""
    extra: dict[str, str] = field(default_factory=dict)
    """Extra message, by unique key, stored after this one."""


class Relay:
    """Between a mirror and its target; `plan` may be changed while nothing is sent. A context manager."""

    def __init__(self, namesrv: str, broker: str) -> None:
        self.plan = Plan()
        self._to = {"namesrv": split_address(namesrv), "broker": split_address(broker)}
        self._sockets = {kind: socket.create_server(("127.0.0.1", 0)) for kind in self._to}
        self._links: list[_Link] = []
        self._lock = threading.Lock()
        self.waiting: dict[str, Command] = {}
        """Messages that are held back, by unique key."""

    def address_of(self, kind: str) -> str:
        """Return the relay's address for "namesrv" or "broker"."""
        return f"127.0.0.1:{self._sockets[kind].getsockname()[1]}"

    @property
    def namesrv(self) -> str:
        return self.address_of("namesrv")

    def __enter__(self) -> Self:
        for kind in self._to:
            threading.Thread(target=self._accept, args=(kind,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self._sockets.values():
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def release(self) -> None:
        """Send the `held` messages to the target."""
        held = [key for key in self.plan.held if key in self.waiting]
        target = socket.create_connection(self._to["broker"], timeout=30)
        with target:
            splitter, answered = FrameSplitter(), 0
            for number, key in enumerate(held):
                command = copy(self.waiting.pop(key))
                command.opaque = number + 1
                target.sendall(encode_command(command))
                while answered <= number:
                    answered += len(splitter.feed(target.recv(65536)))

    def _accept(self, kind: str) -> None:
        while True:
            try:
                client, _ = self._sockets[kind].accept()
            except OSError:
                return
            try:
                upstream = socket.create_connection(self._to[kind], timeout=30)
            except OSError:
                client.close()
                continue
            upstream.settimeout(None)
            link = (
                _Planting(client, upstream, self) if kind == "broker" else _Renaming(client, upstream, self)
            )
            with self._lock:
                self._links.append(link)
            link.start()


class _Link:
    """A client connection and its upstream connection."""

    def __init__(self, client: socket.socket, upstream: socket.socket, relay: Relay) -> None:
        self._client, self._upstream, self._relay = client, upstream, relay
        self._locks = {client: threading.Lock(), upstream: threading.Lock()}

    def start(self) -> None:
        for source, pass_on in ((self._client, self.asked), (self._upstream, self.answered)):
            threading.Thread(target=self._pump, args=(source, pass_on), daemon=True).start()

    def close(self) -> None:
        for end in (self._client, self._upstream):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def asked(self, command: Command) -> None:
        self.send(self._upstream, command)

    def answered(self, command: Command) -> None:
        self.send(self._client, command)

    def send(self, to: socket.socket, command: Command) -> None:
        with self._locks[to]:
            to.sendall(encode_command(command))

    def _pump(self, source: socket.socket, pass_on: Callable[[Command], None]) -> None:
        splitter = FrameSplitter()
        try:
            while data := source.recv(65536):
                for command in splitter.feed(data):
                    pass_on(command)
        except OSError:
            pass
        finally:
            self.close()


class _Renaming(_Link):
    """A connection to a namesrv, whose routes are changed to name the relay's broker."""

    def answered(self, command: Command) -> None:
        host, port = self._relay._to["broker"]
        there = self._relay.address_of("broker").encode()
        command.body = bytes(command.body).replace(f"{host}:{port}".encode(), there)
        super().answered(command)


class _Planting(_Link):
    """A connection to a broker, which applies the planned faults to messages."""

    def __init__(self, client: socket.socket, upstream: socket.socket, relay: Relay) -> None:
        super().__init__(client, upstream, relay)
        self._keys: dict[int, str] = {}
        self._own = _OURS
        self._then: dict[int, tuple[list[Command], Command]] = {}
        """By opaque of the relay's own requests: the requests to send next, and the answer to give after them."""
        self._sent: dict[int, Command] = {}

    def asked(self, command: Command) -> None:
        key = unique_key(command)
        plan = self._relay.plan
        if key in plan.lost or key in plan.held or key in plan.behind:
            self._relay.waiting[key] = changed(command, plan)
            self.send(self._client, _stored(command))
            return
        if key in plan.again or key in plan.extra or key in plan.behind.values():
            self._keys[command.opaque], self._sent[command.opaque] = key, command
        self.send(self._upstream, changed(command, plan))

    def answered(self, command: Command) -> None:
        if command.opaque >= _OURS and command.is_response:
            self._go_on(*self._then.pop(command.opaque))
            return
        key = self._keys.pop(command.opaque, None) if command.is_response else None
        if key is None:
            self.send(self._client, command)
            return
        self._go_on(list(self._after(key, self._sent.pop(command.opaque))), command)

    def _after(self, key: str, sent: Command) -> Iterable[Command]:
        plan = self._relay.plan
        if key in plan.again:
            yield changed(sent, plan)
        if key in plan.extra:
            yield with_properties(sent, {"UNIQ_KEY": plan.extra[key]})
        for late, before in plan.behind.items():
            if before == key:
                yield self._relay.waiting.pop(late)

    def _go_on(self, requests: list[Command], answer: Command) -> None:
        """Send the requests one after the other, then give the client its answer."""
        if not requests:
            self.send(self._client, answer)
            return
        request = copy(requests[0])
        self._own += 1
        request.opaque = self._own
        self._then[request.opaque] = requests[1:], answer
        self.send(self._upstream, request)


def unique_key(command: Command) -> str:
    """Return the unique key of the message in a request, "" for other requests."""
    if command.is_response or command.code not in SENDS:
        return ""
    return decode_properties(command.ext.get(SENDS[command.code][0]) or "").get("UNIQ_KEY", "")


def changed(command: Command, plan: Plan) -> Command:
    """Return the request with the planned changes."""
    key = unique_key(command)
    if key in plan.properties:
        command = with_properties(command, plan.properties[key])
    if key in plan.bodies:
        command = copy(command)
        command.body = plan.bodies[key]
    if key in plan.flags:
        command = copy(command)
        command.ext = {**command.ext, "sysFlag" if command.code == 10 else "f": str(plan.flags[key])}
    return command


def with_properties(command: Command, values: dict[str, str | None]) -> Command:
    """Return the request with other properties."""
    name = SENDS[command.code][0]
    found: dict[str, str | None] = {**decode_properties(command.ext.get(name) or ""), **values}
    other = copy(command)
    other.ext = {**command.ext, name: properties_text(found)}
    return other


def _stored(command: Command) -> Command:
    """Return the answer of a broker that stored a message."""
    ext = {
        "msgId": unique_key(command),
        "queueId": command.ext[SENDS[command.code][1]],
        "queueOffset": "0",
    }
    return Command(0, command.opaque, 1, ext, language="JAVA", binary=command.binary)
