"""Rewrites captured requests for another cluster: transaction ids, queue offsets, recall handles and delivery times.

The answers of the target are learned, so that a later request can refer to what the target stored.
"""

from collections.abc import Callable

from codec import properties as names
from codec.command import Command
from codec.errors import MessageFormatError
from codec.ids import decode_message_id
from codec.java_numbers import I32, parse_integer_or, parse_java_integer
from codec.properties import decode_properties, encode_properties
from gateway.shadow.capture.replay_plan import PULL_CODES
from gateway.shadow.mirror.half_messages import FINAL_DECISIONS
from gateway.shadow.mirror.offset_map import OffsetMap
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.request_policy import (
    END_TRANSACTION,
    RECALL_MESSAGE,
    SEND_CODES,
    UPDATE_CONSUMER_OFFSET,
)
from gateway.shadow.traffic.resend import repeat_command, send_to_queue
from gateway.shadow.traffic.subject import Subject, header_field_name, subject_of

MAX_OFFSET_RANGES = 100_000
"""Offset ranges remembered for each queue."""
_COMMIT, _SUSPEND = 1, 2


class NotReplayed(Exception):
    """A request that has no counterpart at the target; the text says why."""


class RequestRetargeter:
    """Remembers where the target stored each message. ``now_ms`` tells how late the replay is."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._offsets = OffsetMap(MAX_OFFSET_RANGES)
        self._halves: dict[str, tuple[str, str]] = {}
        self._handles: dict[str, str] = {}

    def retarget_request(self, exchange: Exchange, target_broker: str) -> Command:
        """Return the request for the target. Raises NotReplayed."""
        code = exchange.code
        if code in SEND_CODES:
            return self._retarget_send(exchange, target_broker)
        command = repeat_command(exchange.request_command, target_broker)
        subject = subject_of(exchange)
        if code == END_TRANSACTION:
            self._retarget_transaction_end(command, subject)
        elif code == RECALL_MESSAGE:
            command.ext["recallHandle"] = self._target_handle(command)
        elif code == UPDATE_CONSUMER_OFFSET:
            command.ext["commitOffset"] = str(self._translate_offset(exchange, subject, "commitOffset"))
        elif code in PULL_CODES:
            command.ext["queueOffset"] = str(self._translate_offset(exchange, subject, "queueOffset"))
            flag = parse_integer_or(command.ext.get("sysFlag"), 0, I32)
            command.ext["sysFlag"] = str(flag & ~(_COMMIT | _SUSPEND))
        return command

    def learn_answer(self, exchange: Exchange, answer: Command) -> None:
        """Remember where the target stored a message. Raises KeyError, ValueError when the answer does not say so."""
        if exchange.code not in SEND_CODES:
            return
        subject = subject_of(exchange)
        offset = parse_java_integer(answer.ext["queueOffset"])
        if subject.half:
            physical = decode_message_id(answer.ext["msgId"])[2]
            self._halves[subject.unique_key] = (str(offset), str(physical))
        elif subject.offset >= 0:
            queue = (exchange.broker, subject.topic, subject.queue_id)
            self._offsets.add_range(queue, subject.offset, offset, subject.count)
        if "recallHandle" in answer.ext and exchange.answer_command is not None:
            captured_handle = exchange.answer_command.ext.get("recallHandle")
            if captured_handle:
                self._handles[captured_handle] = answer.ext["recallHandle"]

    def _retarget_send(self, exchange: Exchange, target_broker: str) -> Command:
        command = send_to_queue(exchange, subject_of(exchange), target_broker)
        at = header_field_name(exchange.code, "properties")
        text = command.ext.get(at) or ""
        if names.TIMER_DELIVER_MS in text:
            command.ext[at] = self._shift_delivery_time(text, exchange.wall_ms)
        return command

    def _shift_delivery_time(self, text: str, captured_ms: int) -> str:
        """Move an absolute delivery time so that it is as far ahead of now as it was when captured."""
        properties = decode_properties(text)
        deliver_ms = properties.get(names.TIMER_DELIVER_MS, "")
        captured = parse_integer_or(deliver_ms, -1)
        if captured < 0:
            return text
        properties[names.TIMER_DELIVER_MS] = str(captured + self._now_ms() - captured_ms)
        return encode_properties(properties).decode()

    def _retarget_transaction_end(self, command: Command, subject: Subject) -> None:
        if parse_integer_or(command.ext.get("commitOrRollback"), 0, I32) not in FINAL_DECISIONS:
            raise NotReplayed("the producer had not decided yet")
        half_position = self._halves.pop(subject.unique_key, None)
        if half_position is None:
            raise NotReplayed("the target did not store its half message, or ended it already")
        command.ext["tranStateTableOffset"], command.ext["commitLogOffset"] = half_position

    def _target_handle(self, command: Command) -> str:
        handle = self._handles.get(command.ext.get("recallHandle", ""))
        if handle is None:
            raise NotReplayed("the target returned no recall handle for its message")
        return handle

    def _translate_offset(self, exchange: Exchange, subject: Subject, field: str) -> int:
        offset = parse_java_integer(exchange.request_command.ext[field])
        queue = (exchange.broker, subject.topic, subject.queue_id)
        target_offset = self._offsets.translate(queue, offset)
        if target_offset is None:
            raise NotReplayed("no message below its offset was replayed")
        return target_offset


def try_learn_answer(retargeter: RequestRetargeter, exchange: Exchange, answer: Command) -> bool:
    """Learn the target's answer; return False when it does not contain the position of the message."""
    try:
        retargeter.learn_answer(exchange, answer)
    except (KeyError, ValueError, MessageFormatError):
        return False
    return True
