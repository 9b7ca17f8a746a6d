"""Checks pop requests, in the official order and with the official remarks."""

from codec.constants import FAQ, ResponseCode
from codec.java_numbers import I64, parse_integer_or
from codec.topics import PERM_READ
from gateway.broker.consumers.broker_tables import BrokerTables
from gateway.broker.filters.filter_cache import subscription_refusal
from gateway.broker.filters.message_filter import MessageFilter, is_tag_type
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.pop.checkpoint import MAX_POP_MESSAGES
from gateway.broker.topics.name_validation import check_group_name, check_may_commit
from gateway.config.process import BrokerConfig
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.requests.pop import PopMessage

DEFAULT_PRIORITY_FACTOR = 100
MAX_ATTEMPT_ID_CHARS = 255
"""Stock clients send a UUID. The id is kept, and saved, with each ordered pop."""
MAX_LATE_MS = 500
"""A pop is refused when its client stopped waiting longer ago than this."""


class PopRequestChecks:
    """Checks of topic, queue, group and permissions for pops, peeks, notifications and acks.

    Source: the first lines of processRequest in PopMessageProcessor, PeekMessageProcessor, NotificationProcessor and
    AckMessageProcessor, 5.4.0.
    """

    def __init__(self, config: BrokerConfig, tables: BrokerTables, services: MessageServices) -> None:
        self.config = config
        self._store = services.store
        self._clock = services.store.clock
        self._hosts = services.hosts
        self._topics = tables.topics
        self._groups = tables.groups
        self._filter_cache = tables.filter_cache

    def late_remark(self, connection: Connection, request: PopMessage) -> str | None:
        """Return the remark for a pop whose client stopped waiting long ago; None for others."""
        if self._clock.now_ms() - request.born_time - request.poll_time <= MAX_LATE_MS:
            return None
        return f"the broker[{self._hosts.address_for(connection)[0]}] pop message is timeout too much"

    def check_pop(self, connection: Connection, request: PopMessage) -> tuple[TopicConfig, MessageFilter]:
        """Return the topic and filter of a pop. Raises RequestError."""
        host = self._hosts.address_for(connection)[0]
        if not self.config.broker_permission & PERM_READ:
            raise RequestError(ResponseCode.NO_PERMISSION, f"the broker[{host}] pop message is forbidden")
        if request.max_msg_nums > MAX_POP_MESSAGES:
            remark = f"the broker[{host}] pop message's num is greater than 32"
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
        check_may_commit(request.consumer_group, request.topic)
        self.check_invisible_time(request.invisible_time)
        if request.attempt_id is not None and len(request.attempt_id) > MAX_ATTEMPT_ID_CHARS:
            remark = f"attemptId has {len(request.attempt_id)} characters, at most {MAX_ATTEMPT_ID_CHARS}"
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
        topic_config = self._check_readable(
            connection, request.topic, request.queue_id, request.consumer_group
        )
        return topic_config, self._message_filter(request)

    def check_read(self, connection: Connection, topic: str, queue_id: int, group: str) -> TopicConfig:
        """Return the topic of a peek or another query. Raises RequestError."""
        if not self.config.broker_permission & PERM_READ:
            host = self._hosts.address_for(connection)[0]
            raise RequestError(ResponseCode.NO_PERMISSION, f"the broker[{host}] peeking message is forbidden")
        return self._check_readable(connection, topic, queue_id, group)

    def _check_readable(self, connection: Connection, topic: str, queue_id: int, group: str) -> TopicConfig:
        config = self._require_topic(topic)
        if not config.perm & PERM_READ:
            # The official remark says "peeking" for pops as well.
            raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
        if queue_id >= config.read_queue_nums:  # a negative id means: any queue
            raise _illegal_queue(ResponseCode.INVALID_PARAMETER, connection, config, queue_id)
        if not self.require_group(group).consume_enable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        return config

    def _require_topic(self, topic: str) -> TopicConfig:
        config = self._topics.get(topic)
        if config is None:
            remark = f"topic[{topic}] not exist, apply first please! {FAQ}"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)
        return config

    def check_topic_exists(self, topic: str) -> None:
        """Refuse a topic that does not exist, or no longer. Raises RequestError."""
        self._require_topic(topic)

    def is_priority_pop(self, config: TopicConfig, group: str, chance: int) -> bool:
        """Tell whether a pop takes messages by priority, that is from the last queue first.

        ``chance`` is a random number below 100; the group's ``priority.factor`` is the percentage of pops by priority.
        """
        if config.attributes.get("message.type") != "PRIORITY":
            return False
        group_config = self._groups.get(group)
        attributes = {} if group_config is None else group_config.attributes
        return chance < parse_integer_or(attributes.get("priority.factor"), DEFAULT_PRIORITY_FACTOR)

    def _message_filter(self, request: PopMessage) -> MessageFilter:
        """Return the filter of a pop's expression; without one, everything passes."""
        try:
            if not request.exp or is_tag_type(request.exp_type):
                return self._filter_cache.tag_filter(request.exp)
            return self._filter_cache.sql_filter(request.exp_type, request.exp)
        except ValueError as error:
            raise subscription_refusal(error) from error

    def check_invisible_time(self, invisible_ms: int) -> None:
        """Refuse an invisible time whose end exceeds Java's range of times. Raises RequestError.

        Deviation: in the official broker the sum overflows, so that the message is visible again at once.
        """
        if self._clock.now_ms() + invisible_ms not in I64:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"invisibleTime[{invisible_ms}] is illegal")

    def require_group(self, group: str) -> SubscriptionGroupConfig:
        """Return a group, created if that is allowed. Raises RequestError."""
        config = self._groups.find_or_create(group)
        if config is None:
            remark = f"subscription group [{group}] does not exist, {FAQ}"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return config

    def check_group_name(self, group: str) -> None:
        """Refuse the name of a group that neither exists nor can exist. Raises RequestError."""
        check_group_name(group, self._groups.table)

    def is_queue(self, topic: str, queue_id: int) -> bool:
        """Tell whether a queue can be read."""
        config = self._topics.get(topic)
        return config is not None and 0 <= queue_id < config.read_queue_nums

    def check_popped(self, connection: Connection, topic: str, queue_id: int) -> tuple[int, int]:
        """Check a queue that a receipt handle names; return its first and its end offset. Raises RequestError."""
        config = self._require_topic(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise _illegal_queue(ResponseCode.MESSAGE_ILLEGAL, connection, config, queue_id)
        return self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)


def _illegal_queue(code: int, connection: Connection, config: TopicConfig, queue_id: int) -> RequestError:
    host, port = connection.remote
    return RequestError(
        code,
        f"queueId[{queue_id}] is illegal, topic:[{config.topic_name}] "
        f"topicConfig.readQueueNums:[{config.read_queue_nums}] consumer:[/{host}:{port}]",
    )
