"""Connections of servers under test: they carry out faults, and convert clients' times after `advance`."""

import re
from collections.abc import Callable
from typing import Any, Final

import trio

from codec.command import Command, decode_frame, encode_response
from codec.constants import FAQ, FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from codec.hosts import format_host
from codec.java_numbers import parse_integer_or
from codec.properties import TIMER_DELIVER_MS, decode_properties, encode_properties
from gateway.testing.clock import AdvancingClock
from gateway.testing.faults import FLOW_CONTROL_REMARK, FaultAction, FaultSpec, FaultTable, topic_of
from remoting.bodies.routes import TopicRouteData
from remoting.frame_connection import TAKES_NO_FRAMES, FrameConnection
from remoting.requests.client import HeartBeat
from remoting.requests.pop import Notification, PeekMessage, PopMessage
from remoting.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from remoting.transport import Buffer

_CLIENT_ID: Final = re.compile(rb'"clientID"\s*:\s*"([^"]*)"')


class FaultyConnection(FrameConnection):
    """A connection of which some requests meet faults."""

    __slots__ = ("_client_id", "_clock", "_doomed_answers", "_faults")

    def __init__(self, faults: FaultTable, clock: AdvancingClock, *parts: Any) -> None:
        super().__init__(*parts)
        # Every frame may meet a fault, so each is handled by `_dispatch`.
        self._frame_taker = TAKES_NO_FRAMES
        self._faults = faults
        self._clock = clock
        self._client_id = ""
        self._doomed_answers: dict[int, FaultAction] = {}

    def _dispatch(self, command: Command) -> bytes | None:
        if command.flag & FLAG_RESPONSE:
            return super()._dispatch(command)
        if command.code == HeartBeat.code:
            self._note_client(command)
        if self._clock.ahead_ms:
            shift_client_times(command, self._clock.ahead_ms)
        if not self._faults.active:
            return super()._dispatch(command)
        specs = [fault.spec for fault in self._faults.find(command, self._client_names())]
        delay_s = sum(spec.seconds for spec in specs if spec.action is FaultAction.LATENCY)
        strike = next((spec for spec in specs if spec.action is not FaultAction.LATENCY), None)
        if not delay_s:
            return self._handle(command, strike)
        self.spawn(self._handle_later, command, strike, delay_s)
        return None

    async def _handle_later(self, command: Command, strike: FaultSpec | None, delay_s: float) -> None:
        await trio.sleep(delay_s)
        answer = self._handle(command, strike)
        if answer is not None:
            self.write(answer)

    def _handle(self, command: Command, strike: FaultSpec | None) -> bytes | None:
        """Handle a request, or have it struck by a fault, and return the answer unless it comes later or never."""
        handle: Callable[[Command], bytes | None] = super()._dispatch
        if strike is None:
            return handle(command)
        is_oneway = bool(command.flag & FLAG_ONEWAY)
        match strike.action:
            case FaultAction.CLOSE:
                self.close("injected fault")
                return None
            case FaultAction.ERROR | FaultAction.FLOW_CONTROL:
                return None if is_oneway else _refuse(command, strike)
            case FaultAction.DUPLICATE:
                # As a oneway request the first one is not answered.
                handle(Command(**{**_fields(command), "flag": command.flag | FLAG_ONEWAY}))
                return handle(command)
            case FaultAction.ROUTE:
                return _change_route(command, handle(command), strike)
        # The other faults strike when the answer is written, which may be later.
        if not is_oneway:
            self._doomed_answers[command.opaque] = strike.action
        return handle(command)

    def write(self, data: Buffer) -> None:
        """Send bytes, except the answers that a fault concerns."""
        if not self._doomed_answers:
            super().write(data)
            return
        position, frames = 0, bytes(data)
        while position < len(frames) and not self.closed:
            end = position + 4 + int.from_bytes(frames[position : position + 4], "big")
            self._write_frame(frames[position:end])
            position = end

    def _write_frame(self, frame: bytes) -> None:
        command = decode_frame(frame, 4, len(frame))
        is_answer = command.flag & FLAG_RESPONSE
        action = self._doomed_answers.pop(command.opaque, None) if is_answer else None
        if action is None:
            super().write(frame)
        elif action is not FaultAction.DROP_ANSWER:
            if action is FaultAction.HALF_ANSWER:
                super().write(frame[: len(frame) // 2])
            self.close("injected fault")

    def _note_client(self, command: Command) -> None:
        match = _CLIENT_ID.search(bytes(command.body))
        if match is not None:
            self._client_id = match[1].decode("utf-8", "replace")

    def _client_names(self) -> tuple[str, ...]:
        return self._client_id, self.remote[0], format_host(self.remote)


def _fields(command: Command) -> dict[str, Any]:
    copied = {name: getattr(command, name) for name in Command.__slots__}
    return {**copied, "ext": dict(command.ext)}


def _refuse(command: Command, strike: FaultSpec) -> bytes:
    if strike.action is FaultAction.FLOW_CONTROL:
        return encode_response(command.opaque, ResponseCode.SYSTEM_BUSY, None, b"", FLOW_CONTROL_REMARK)
    return encode_response(command.opaque, strike.code, None, b"", strike.remark)


def _change_route(command: Command, answer: bytes | None, strike: FaultSpec) -> bytes | None:
    """Return the answer to a query of a route with what the fault changes; without changes, the topic is unknown."""
    if answer is None:
        return None
    decoded = decode_frame(answer, 4, len(answer))
    if decoded.code != ResponseCode.SUCCESS:
        return answer
    if all(condition is None for condition in (strike.queues, strike.permission, strike.address)):
        remark = f"No topic route info in name server for the topic: {topic_of(command)}{FAQ}"
        return encode_response(command.opaque, ResponseCode.TOPIC_NOT_EXIST, None, b"", remark)
    route = TopicRouteData.from_json(decoded.body)
    for queues in route.queue_datas:
        if strike.queues is not None:
            queues.read_queue_nums = queues.write_queue_nums = strike.queues
        if strike.permission is not None:
            queues.perm = strike.permission
    if strike.address is not None:
        for broker in route.broker_datas:
            broker.broker_addrs = dict.fromkeys(broker.broker_addrs, strike.address)
    return encode_response(command.opaque, decoded.code, None, route.to_json(standard=True))


TIME_FIELDS: Final = {
    SendMessage.code: "bornTimestamp",
    SendMessageV2.code: "g",
    SendBatchMessage.code: "g",
    PopMessage.code: "bornTime",
    PeekMessage.code: "bornTime",
    Notification.code: "bornTime",
}
"""The header field with the client's time, by request code."""
PROPERTIES_FIELDS: Final = {SendMessage.code: "properties", SendMessageV2.code: "i"}
"""The header field with the properties of a message, which may name its delivery time, by request code."""


def shift_client_times(command: Command, ahead_ms: int) -> None:
    """Move the absolute times of a request ahead, in place: from the client's clock to that of the servers.

    Without it a message for "in ten seconds" would be late at once after `advance(60)`, and every pop request would
    look like one whose client has given up long ago.
    """
    field = TIME_FIELDS.get(command.code)
    if field is None:
        return
    ext = command.ext
    _shift(ext, field, ahead_ms)
    properties_field = PROPERTIES_FIELDS.get(command.code)
    if properties_field is not None and TIMER_DELIVER_MS in ext.get(properties_field, ""):
        properties = decode_properties(ext[properties_field].encode())
        _shift(properties, TIMER_DELIVER_MS, ahead_ms)
        ext[properties_field] = encode_properties(properties).decode()


def _shift(fields: dict[str, str], name: str, ahead_ms: int) -> None:
    """Add to a field that is a time; 0 and -1 stand for no time."""
    sent_ms = parse_integer_or(fields.get(name), 0)
    if sent_ms > 0:
        fields[name] = str(sent_ms + ahead_ms)
