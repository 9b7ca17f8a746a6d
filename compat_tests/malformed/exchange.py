"""Sends one malformed request over a raw socket, and observes the answer and the fate of the connection."""

import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from codec.command import Command
from codec.constants import FLAG_RESPONSE
from codec.frames import FrameSplitter
from compat_tests.malformed.variants import OPAQUE, Variant, probe_frame
from compat_tests.server import split_address

ANSWER_TIMEOUT_S: Final = 15.0
_PROBE_OPAQUE: Final = 1_000_007
KEPT_FIELDS: Final = ("MSG_REGION", "TRACE_ON")
"""Header fields of answers whose values are compared; of others only the names are, for they count or tell times."""
_MASKS: Final = (
    (re.compile(r"\[?\d{1,3}(\.\d{1,3}){3}:\d+\]?"), "ADDRESS"),
    (re.compile(r"\b\d{13}\b"), "TIME"),
    (re.compile(r"0x[0-9a-f]{8}"), "CHANNEL"),
)
CLOSED: Final = "closed"
SILENT: Final = "no answer"
OTHER_OPAQUE: Final = "another opaque"


@dataclass(frozen=True, slots=True)
class ObservedAnswer:
    """The answer (code, remark, header fields) or `SILENT`, and if the connection stays open."""

    code: int | str
    remark: str = ""
    ext: tuple[tuple[str, str], ...] = ()
    stays_open: bool = True

    def to_json(self) -> list[Any]:
        """Return the outcome as a short list: the parts at the end that are usual are left out."""
        parts: list[Any] = [self.code, self.remark, dict(self.ext), "" if self.stays_open else CLOSED]
        while len(parts) > 1 and not parts[-1]:
            parts.pop()
        return parts

    @classmethod
    def from_json(cls, parts: list[Any]) -> "ObservedAnswer":
        usual: list[Any] = [SILENT, "", {}, ""]
        code, remark, ext, closed = parts + usual[len(parts) :]
        return cls(code, remark, tuple(ext.items()), closed != CLOSED)


class RawExchange:
    """One connection on which a request was sent."""

    def __init__(self, server: str, variant: Variant) -> None:
        self._socket = socket.create_connection(split_address(server), ANSWER_TIMEOUT_S)
        self._splitter = FrameSplitter()
        self._variant = variant
        self._is_closed = False
        self._answer: Command | None = None
        self._is_probed = False
        self._write(variant.frame)

    def outcome(self, answer_within_s: float) -> ObservedAnswer:
        """Return what the request leads to. The connection is closed afterwards.

        The connection counts as open if it answers another request after the answer, or after the time for it.
        """
        try:
            if self._answer is None:
                self._read_until(lambda: self._answer is not None, answer_within_s)
            if not self._is_closed:
                self._write(probe_frame(_PROBE_OPAQUE))
                self._read_until(lambda: self._is_probed, ANSWER_TIMEOUT_S)
            return self._outcome()
        finally:
            self._socket.close()

    def _outcome(self) -> ObservedAnswer:
        stays_open = self._is_probed
        answer = self._answer
        if answer is None:
            return ObservedAnswer(SILENT, stays_open=stays_open)
        if self._variant.has_opaque and answer.opaque != OPAQUE:
            return ObservedAnswer(OTHER_OPAQUE, stays_open=stays_open)
        ext = {name: value if name in KEPT_FIELDS else "*" for name, value in sorted(answer.ext.items())}
        return ObservedAnswer(answer.code, masked(answer.remark or ""), tuple(ext.items()), stays_open)

    def _write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except ConnectionError:
            self._is_closed = True

    def _read_until(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        """Take frames until a condition holds, the peer closes, or the time is up."""
        end = time.monotonic() + timeout_s
        while not is_done() and not self._is_closed:
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            try:
                data = self._socket.recv(256 * 1024)
            except TimeoutError:
                return
            except ConnectionError:
                data = b""
            self._is_closed = not data
            with suppress(ValueError):
                for frame in self._splitter.feed(data):
                    self._take(frame)

    def _take(self, command: Command) -> None:
        if not command.flag & FLAG_RESPONSE:
            return  # the server asks something itself: a notice to members of a group
        if command.opaque == _PROBE_OPAQUE:
            self._is_probed = True
        elif self._answer is None:
            self._answer = command


def masked(remark: str) -> str:
    """Return a remark without addresses, times and channel numbers."""
    for pattern, word in _MASKS:
        remark = pattern.sub(word, remark)
    return remark
