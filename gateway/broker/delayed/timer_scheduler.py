"""Decides which messages wait for a delivery time, and turns them into messages of the timer topic."""

import random
from collections.abc import Callable
from typing import Final

from codec import properties as keys
from codec.constants import ResponseCode
from codec.java_numbers import JavaNumberError, parse_java_integer
from codec.recall_handle import RecallHandle
from codec.topics import RETRY_PREFIX, TIMER_TOPIC
from gateway.broker.messages.message_writer import MessageDraft
from gateway.broker.waiting.wake_signal import WakeSignal
from gateway.config.process import BrokerConfig
from remoting.errors import RequestError
from storage.clock import Clock

TIMER_KEYS: Final = (keys.TIMER_DELIVER_MS, keys.TIMER_DELAY_SEC, keys.TIMER_DELAY_MS)
LONG_MAX: Final = (1 << 63) - 1


class TimerScheduler:
    """Turns a message with a delivery time into one of the timer topic.

    ``count_in_slot`` returns the number of messages in a slot. The signal ``arrived`` is set for each message that is
    about to be stored in the timer topic. Source: HookUtils.checkIfTimerMessage and transformTimerMessage, 5.4.0.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        count_in_slot: Callable[[int], int],
        arrived: WakeSignal,
    ) -> None:
        self._clock = clock
        self._count_in_slot = count_in_slot
        self._arrived = arrived
        self.reconfigure(config)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._config = config

    def schedule(self, message: MessageDraft) -> MessageDraft:
        """Return the message for the timer topic; the message itself if it is not for a time in the future.

        Raises RequestError for a time that is not allowed and for a slot that is full.
        """
        properties = message.properties
        if not self._has_timer_property(message):
            return message
        if not self._config.store.timer_wheel_enable:
            remark = "accurate timer message is not enabled, timerWheelEnable is false"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        now_ms = self._clock.now_ms()
        deliver_ms = deliver_time_ms(properties, now_ms)
        if deliver_ms is None or deliver_ms - now_ms > self._config.store.timer_max_delay_s * 1000:
            raise self._illegal_time()
        if deliver_ms <= now_ms:
            if keys.TIMER_DEL_UNIQKEY in properties:
                raise self._illegal_time()
            return message
        if keys.TIMER_DEL_UNIQKEY in properties and not self._config.recall_message_enable:
            # Deviation: official producers can recall anybody's message this way, even where RECALL_MESSAGE is refused.
            raise RequestError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        return self._as_timer_message(message, slot_before(deliver_ms, self._config.store.timer_slot_ms))

    @staticmethod
    def _has_timer_property(message: MessageDraft) -> bool:
        properties = message.properties
        if message.topic == TIMER_TOPIC or keys.TIMER_OUT_MS in properties:
            return False
        return any(key in properties for key in TIMER_KEYS)

    def _as_timer_message(self, message: MessageDraft, slot_ms: int) -> MessageDraft:
        self._refuse_crowded(slot_ms)
        properties = dict(message.properties)
        properties.pop(keys.REAL_TOPIC, None)
        properties.pop(keys.REAL_QUEUE_ID, None)
        properties[keys.TIMER_OUT_MS] = str(slot_ms)
        # At the end, where `waiting_message.parse_real_queue` finds them fastest.
        properties[keys.REAL_TOPIC] = message.topic
        properties[keys.REAL_QUEUE_ID] = str(message.queue_id)
        self._arrived.set()
        return message.with_changes(topic=TIMER_TOPIC, queue_id=0, properties=properties)

    def _refuse_crowded(self, slot_ms: int) -> None:
        """Refuse messages for a full slot. Between the limit and twice the limit a rising share is refused at random.

        Source: TimerMessageStore.isReject, 5.4.0.
        """
        limit, count = self._config.store.timer_congest_num_each_slot, self._count_in_slot(slot_ms)
        if count <= limit:
            return
        if count >= 2 * limit or random.randrange(1000) > 1000 * (count - limit) / (limit + 0.1):
            remark = (
                f"timer message is under flow control, max num limit is {2 * limit} or the current value is "
                f"greater than {limit} and less than {2 * limit}, trigger random flow control"
            )
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)

    def _illegal_time(self) -> RequestError:
        remark = (
            "timer message illegal, the delay time should not be bigger than the max delay "
            f"{self._config.store.timer_max_delay_s * 1000}ms; or if set del msg, the delay time should be bigger "
            "than the current time"
        )
        return RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)


def deliver_time_ms(properties: dict[str, str], now_ms: int) -> int | None:
    """Return the delivery time in properties, counting delays from ``now_ms``; None when it is not a number."""
    for key, unit_ms in ((keys.TIMER_DELAY_SEC, 1000), (keys.TIMER_DELAY_MS, 1)):
        if key in properties:
            delay = _parse_long(properties[key])
            return None if delay is None else now_ms + delay * unit_ms
    return _parse_long(properties.get(keys.TIMER_DELIVER_MS, ""))


def _parse_long(text: str) -> int | None:
    """Return the number that Long.parseLong reads, None where it throws."""
    try:
        return parse_java_integer(text)
    except JavaNumberError:
        return None


def slot_before(deliver_ms: int, precision_ms: int) -> int:
    """Return the slot of a message: the last one before its time. Source: HookUtils.transformTimerMessage, 5.4.0."""
    return (deliver_ms - 1) // precision_ms * precision_ms


def encode_recall_handle(properties: dict[str, str], broker_name: str) -> str | None:
    """Return the handle that recalls a timer message with these properties; None for any other message.

    Source: SendMessageProcessor.attachRecallHandle, 5.4.0.
    """
    slot_ms, topic = _parse_long(properties.get(keys.TIMER_OUT_MS, "")), properties.get(keys.REAL_TOPIC)
    if slot_ms is None or topic is None or topic.startswith(RETRY_PREFIX):
        return None
    unique_key = properties[keys.UNIQ_CLIENT_MESSAGE_ID_KEYIDX]
    return RecallHandle(topic, broker_name, str(slot_ms + 1), unique_key).encode()
