"""Stores single messages that do not come from a plain send: delayed, transactional, retried and system messages.

`MessageWriter` honours a delay that a message requests, `MessageAppender` ignores it. For speed, `send_handler.py`
performs the same steps inline for plain messages. Callers check permissions.
"""

from collections.abc import Mapping
from typing import Protocol

from codec.constants import ResponseCode
from codec.java_numbers import I32, JavaNumberError, parse_java_integer
from codec.properties import DELAY_TIME_LEVEL
from gateway.broker.waiting.long_poll import LongPolls
from remoting.errors import RequestError
from storage.append import Appended, NewMessage
from storage.errors import MessageIllegal, StoreFull
from storage.store import MessageStore

MessageDraft = NewMessage[dict[str, str]]
"""A message whose properties can still change: it may be redirected to the topic in which it waits."""


def count_attempt(reconsume_times: int) -> int:
    """Return the attempts to consume a message after one more.

    Deviation: the official broker's number overflows to a negative one, with which the message never dies.
    """
    return min(reconsume_times + 1, I32.high)


def read_delay_level(properties: Mapping[str, str]) -> int:
    """Return the delay level that a message requests, 0 for none.

    Raises RequestError for text that Java would not parse. Source: Message.getDelayTimeLevel, 5.4.0.
    """
    text = properties.get(DELAY_TIME_LEVEL)
    if text is None:
        return 0
    try:
        return parse_java_integer(text, I32)
    except JavaNumberError as error:
        remark = f"java.lang.NumberFormatException: {error}"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error


class MessageScheduler(Protocol):
    """Turns a message that requests a delay into the one that waits in the schedule or timer topic."""

    def schedule(self, message: MessageDraft) -> MessageDraft:
        """Return the message that waits in place of this one; the message itself when it requests no delay."""


def store_refusal(error: Exception, max_message_bytes: int) -> RequestError:
    """Return the official refusal for an error of the store.

    Source: SendMessageProcessor.handlePutMessageResult, 5.4.0.
    """
    if isinstance(error, MessageIllegal):
        return RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
            f"{max_message_bytes}B, msg properties length limit 32KB.",
        )
    # The text of a StoreFull names files of this machine, its reason does not.
    reason = error.reason if isinstance(error, StoreFull) else str(error)
    return RequestError(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now. It may be caused by one of the following reasons: the broker's disk is full "
        f"[{reason}], messages are put to the slave, message store has been shut down, etc.",
    )


class MessageAppender:
    """Appends messages to the queues they name at once, even if they request a delay."""

    def __init__(self, store: MessageStore, long_polls: LongPolls) -> None:
        self._store = store
        self._long_polls = long_polls

    def append(self, message: MessageDraft) -> Appended:
        """Store a message and mark the pulls that wait for it. Raise RequestError when the store refuses it."""
        if self._store.disk_full:
            raise store_refusal(StoreFull("nearly full"), self._store.config.max_message_bytes)
        try:
            appended = self._store.append(message)
        except (MessageIllegal, StoreFull) as error:
            raise store_refusal(error, self._store.config.max_message_bytes) from error
        self._long_polls.mark_grown(message.topic, message.queue_id)
        return appended


class MessageWriter(MessageAppender):
    """Stores messages; those that request a delay go to the topic in which they wait."""

    def __init__(self, store: MessageStore, long_polls: LongPolls, scheduler: MessageScheduler) -> None:
        super().__init__(store, long_polls)
        self.scheduler = scheduler

    def write(self, message: MessageDraft) -> Appended:
        """Store a message. Raise RequestError when the store refuses it or its delivery time is not allowed.

        Waiting pulls of its queue are answered at the next `LongPolls.answer_marked`.
        """
        return self.append(self.scheduler.schedule(message))

    def apply_schedule(self, message: MessageDraft) -> MessageDraft:
        """Return the message as `write` stores it. Raise RequestError when its delivery time is not allowed."""
        return self.scheduler.schedule(message)
