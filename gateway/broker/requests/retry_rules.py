"""Decides what happens to a message that a group failed to consume: another try later, or the dead letter topic.

The message waits for its next try as a delayed message; see `delay_service.py`.
"""

import logging
import random
from typing import Final

from codec import properties as keys
from codec.constants import FAQ, VERSION_NAMES, ResponseCode
from codec.message import Message
from codec.topics import (
    PERM_WRITE,
    RETRY_PREFIX,
    dlq_topic,
    group_of_retry_topic,
    retry_topic,
)
from gateway.broker.consumers.group_table import GroupTable
from gateway.broker.consumers.queue_locks import QueueLocks
from gateway.broker.messages.message_writer import MessageDraft, count_attempt
from gateway.broker.statistics.traffic_stats import BrokerStats
from gateway.broker.topics.topic_table import TopicTable, unit_flags
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.errors import RequestError
from remoting.requests.send import ConsumerSendMsgBack
from storage.append import NewMessage

log = logging.getLogger(__name__)

DEAD_LETTER_QUEUES: Final = 1
FIRST_RETRY_LEVEL: Final = 3
FIRST_VERSION_WITH_OWN_LIMIT: Final = VERSION_NAMES.index("V3_4_9")
"""First client version that may send its own limit of attempts."""


class RetryRules:
    """Chooses the topic of a failed message and prepares the message to be stored."""

    def __init__(
        self, topics: TopicTable, groups: GroupTable, queue_locks: QueueLocks, stats: BrokerStats
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._queue_locks = queue_locks
        self._dead_letters = stats.dead_letters

    def require_group(self, name: str) -> SubscriptionGroupConfig:
        """Return the group's settings. Raise RequestError SUBSCRIPTION_GROUP_NOT_EXIST when it cannot be created."""
        config = self._groups.find_or_create(name)
        if config is None:
            remark = f"subscription group not exist, {name} {FAQ}"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return config

    def redirect_to_dead_letters(
        self, message: MessageDraft, client_version: int, max_times: int | None
    ) -> MessageDraft:
        """Return the message unchanged, or after too many attempts as a dead letter.

        ``max_times`` is the client's own limit of attempts.

        Only messages that a consumer sends to its retry topic are redirected. A group that consumes in order has made
        its attempts in the client, so its messages are redirected at once.
        Source: SendMessageProcessor.handleRetryAndDLQ, 5.4.0.
        """
        if not message.topic.startswith(RETRY_PREFIX):
            return message
        name = group_of_retry_topic(message.topic)
        limit = self.require_group(name).retry_max_times
        if max_times is not None and client_version >= FIRST_VERSION_WITH_OWN_LIMIT:
            limit = max_times
        if message.reconsume_times <= limit and self._queue_locks.all_expired(name):
            return message
        topic = self._dead_letter_topic(name)
        self._dead_letters[name, message.properties.get(keys.RETRY_TOPIC, message.topic)].count_messages(1, 0)
        log.info(
            "message moved to the dead letter topic", extra={"group": name, "times": message.reconsume_times}
        )
        properties = {**message.properties, keys.DELAY_TIME_LEVEL: "-1"}
        return message.with_changes(topic=topic, queue_id=0, properties=properties)

    def make_retry_message(
        self, request: ConsumerSendMsgBack, client_version: int, message: Message
    ) -> MessageDraft | None:
        """Return the message that a consumer sends back, ready to be stored; None when its group has no retry queues.

        Raises RequestError. Source: AbstractSendMessageProcessor.consumerSendMsgBack, 5.4.0.
        """
        group = self.require_group(request.group)
        if group.retry_queue_nums <= 0:
            return None
        topic, queue_id = self._retry_queue(request, group)
        limit = group.retry_max_times
        if client_version >= FIRST_VERSION_WITH_OWN_LIMIT and request.max_reconsume_times is not None:
            limit = request.max_reconsume_times
        level = request.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        if message.reconsume_times >= limit or request.delay_level < 0:
            topic, queue_id, level = self._dead_letter_topic(request.group), 0, 0
            sent_to = request.origin_topic or message.properties.get(keys.RETRY_TOPIC, message.topic)
            self._dead_letters[request.group, sent_to].count_messages(1, 0)
            extra = {"group": request.group, "unique_key": message.unique_key}
            log.info("message moved to the dead letter topic", extra=extra)
        return self._copy_for_retry(message, topic, queue_id, level)

    def check_retry_topic(self, request: ConsumerSendMsgBack) -> None:
        """Refuse a group whose retry topic is not writable.

        Call this before looking up the message, as the official broker does.
        """
        group = self.require_group(request.group)
        if group.retry_queue_nums > 0:
            self._retry_queue(request, group)

    def _retry_queue(self, request: ConsumerSendMsgBack, group: SubscriptionGroupConfig) -> tuple[str, int]:
        topic = retry_topic(request.group)
        flags = unit_flags(unit=False, subscribed=request.unit_mode)
        config = self._topics.create_for_send_back(topic, group.retry_queue_nums, sys_flag=flags)
        if not config.perm & PERM_WRITE:
            raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
        return topic, random.choice(self._topics.queue_ids(group.retry_queue_nums))

    def _dead_letter_topic(self, group: str) -> str:
        topic = dlq_topic(group)
        self._topics.create_for_send_back(topic, DEAD_LETTER_QUEUES)
        return topic

    @staticmethod
    def _copy_for_retry(message: Message, topic: str, queue_id: int, level: int) -> MessageDraft:
        properties = dict(message.properties)
        properties.setdefault(keys.RETRY_TOPIC, message.topic)
        properties[keys.WAIT_STORE_MSG_OK] = "false"
        properties[keys.DELAY_TIME_LEVEL] = str(level)
        if not properties.get(keys.ORIGIN_MESSAGE_ID, "").strip():
            properties[keys.ORIGIN_MESSAGE_ID] = message.msg_id
        again = NewMessage.from_stored(message, topic, queue_id)
        return again.with_changes(
            properties=properties, reconsume_times=count_attempt(message.reconsume_times)
        )
