"""PULL_MESSAGE and LITE_PULL_MESSAGE (codes 11, 361), answered with slices of the commit log.

Pulls that find no message wait in `long_poll.py`. Which replica a consumer pulls from next, and what is different at a
slave, is decided in `slave_reads.py`.
Source: PullMessageProcessor and DefaultPullMessageResultHandler, 5.4.0.
"""

from functools import partial
from typing import Final, NamedTuple

from codec.command import Command, encode_response
from codec.constants import FAQ, ResponseCode
from codec.topics import PERM_READ, may_always_pull
from gateway.broker.consumers.broadcast_offsets import PROXY_FOR_BROADCAST, BroadcastOffsets
from gateway.broker.consumers.broker_tables import BrokerTables
from gateway.broker.filters.filter_cache import subscription_refusal
from gateway.broker.filters.message_filter import MessageFilter, is_tag_type
from gateway.broker.limits.quotas import PULL, Quotas
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.requests.slave_reads import SlaveReads
from gateway.broker.topics.name_validation import check_may_commit
from gateway.broker.waiting.waiting_requests import (
    ANSWERED,
    NOTHING,
    UNFINISHED,
    WaitingPull,
    WaitOutcome,
    keep_header,
)
from gateway.config.process import BrokerConfig
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.header_reader import compile_header_reader
from remoting.requests.pull import PullMessage
from storage.queue_read import ReadResult, ReadStatus

COMMIT_OFFSET, SUSPEND, SUBSCRIPTION, LITE_PULL = 0x1, 0x2, 0x4, 0x10
LITE_PULL_MESSAGE: Final = 361
DEFAULT_MAX_BYTES: Final = 256 * 1024
NOT_FOUND: Final = ResponseCode.PULL_NOT_FOUND
NO_MATCHED_MESSAGE: Final = ReadStatus.NO_MATCHED_MESSAGE

FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC, FORBIDDEN_BROADCAST, FORBIDDEN_SUBSCRIPTION = range(1, 6)

CODE_OF_STATUS: Final = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
EMPTY_QUEUE: Final = (ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE)
_read_header = compile_header_reader(
    PullMessage, "consumer_group", "topic", "queue_id", "queue_offset", "max_msg_nums", "sys_flag", "commit_offset",
    "suspend_timeout_millis", "sub_version", "max_msg_bytes", "request_source",
)  # fmt: skip


class CheckedPull(NamedTuple):
    """A pull request whose header fields were parsed and checked."""

    group: str
    topic: str
    queue_id: int
    offset: int
    max_messages: int
    max_bytes: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_ms: int
    request_source: int | None
    topic_config: TopicConfig
    group_config: SubscriptionGroupConfig
    message_filter: MessageFilter


class PullHandler:
    """Answers pulls at once, or when a message arrives."""

    def __init__(
        self,
        config: BrokerConfig,
        tables: BrokerTables,
        services: MessageServices,
        quotas: Quotas,
        broadcasts: BroadcastOffsets,
        slave_reads: SlaveReads,
    ) -> None:
        self._config = config
        self._slave_reads = slave_reads
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._clients = tables.clients
        self._filters = tables.filters
        self._filter_cache = tables.filter_cache
        self._store = services.store
        self._long_polls = services.long_polls
        self._hosts = services.hosts
        self._stats = services.stats
        self._got = services.stats.delivered
        self._quotas = quotas
        self._broadcasts = broadcasts

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._config = config

    def pull(self, connection: Connection, command: Command) -> bytes | None:
        """Return the answer to a pull, or None while it waits for a message. Raises RequestError."""
        return self._pull_or_wait(connection, command, may_wait=True)

    def _pull_or_wait(self, connection: Connection, command: Command, *, may_wait: bool) -> bytes | None:
        if may_wait:
            self._slave_reads.check_readable()
        pull = self._check_request(connection, command)
        if self._config.reject_pull_consumer_enable:
            self._refuse_pull_consumer(connection, pull.group)
        # An operator's reset of the group's offset comes before any message.
        moved = self._answer_reset(command, pull)
        if moved is not None:
            return moved
        # Broadcasting clients keep their own offsets; one that moved from or to a proxy gets the offset it had there.
        if self._clients.any_broadcasting or pull.request_source is not None:
            moved = self._answer_moved_broadcast(connection, command, pull)
            if moved is not None:
                return moved
        # The status of the read decides the answer's code (`CODE_OF_STATUS`): it says why there is no message.
        result = self._read_messages(pull, pull.offset)
        self._offsets.record_pull(pull.group, pull.topic, pull.queue_id, result.next_offset)
        if may_wait and pull.sys_flag & COMMIT_OFFSET:
            if pull.topic in self._topics.closed_to_producers:
                check_may_commit(pull.group, pull.topic)
            self._offsets.commit_of_client(pull.group, pull.topic, pull.queue_id, pull.commit_offset)
        # Only a pull at the queue's end waits. At its deadline it comes here again, with ``may_wait`` False.
        code = self._response_code(result, pull.offset)
        if code == NOT_FOUND and may_wait and pull.sys_flag & SUSPEND and self._may_hold(command, pull):
            self._long_polls.hold_pull(
                _HeldPull(self, connection, command, pull), (pull.topic, pull.queue_id), self._wait_ms(pull)
            )
            return None
        return self._encode_answer(command, pull, result, code)

    # -- reading and checking ---------------------------------------------------------------------------------------

    def _check_request(self, connection: Connection, command: Command) -> CheckedPull:
        """Return the pull if it is allowed. Raises RequestError."""
        (
            group, topic, queue_id, offset, max_messages, sys_flag, commit_offset, suspend_timeout_ms, version,
            max_bytes, source,
        ) = _read_header(command.ext)  # fmt: skip
        if not self._config.broker_permission & PERM_READ:
            host = self._hosts.address_for(connection)[0]
            raise _forbidden(FORBIDDEN_BROKER, f"the broker[{host}] pulling message is forbidden")
        if command.code == LITE_PULL_MESSAGE and not self._config.lite_pull_message_enable:
            host = self._hosts.address_for(connection)[0]
            remark = f"the broker[{host}] for lite pull consumer is forbidden"
            raise _forbidden(FORBIDDEN_BROKER, remark)
        group_config = self._groups.find_or_create(group)
        if group_config is None:
            remark = f"subscription group [{group}] does not exist, {FAQ}"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        if not group_config.consume_enable:
            raise _forbidden(FORBIDDEN_GROUP, f"subscription group no permission, {group}")
        topic_config = self._topics.get(topic)
        if topic_config is None:
            remark = f"topic[{topic}] not exist, apply first please! {FAQ}"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)
        if not topic_config.perm & PERM_READ:
            raise _forbidden(FORBIDDEN_TOPIC, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= queue_id < topic_config.read_queue_nums:
            _refuse_queue(connection, topic_config, queue_id)
        if sys_flag & SUBSCRIPTION:
            message_filter = self._filter_in_request(command.ext)
        else:
            message_filter = self._filter_of_subscription(group_config, topic, version)
        return CheckedPull(
            group,
            topic,
            queue_id,
            offset,
            max_messages,
            DEFAULT_MAX_BYTES if max_bytes is None else max_bytes,
            sys_flag,
            commit_offset,
            suspend_timeout_ms,
            source,
            topic_config,
            group_config,
            message_filter,
        )

    def _refuse_pull_consumer(self, connection: Connection, group: str) -> None:
        """Refuse pull consumers: only members of groups that consume by push may pull."""
        members = self._clients.consumer_group(group)
        consumes_by_push = members is not None and members.consume_type != "CONSUME_ACTIVELY"
        is_member = members is not None and connection in members.clients
        if not (consumes_by_push or is_member or may_always_pull(group)):
            remark = f"the consumer's group info not exist, or the pull consumer is rejected by server.{FAQ}"
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)

    def _filter_in_request(self, ext: dict[str, str]) -> MessageFilter:
        """Return the filter of a pull whose request contains the subscription.
        Deviation: an invalid SQL92 expression is refused; the official broker lets everything pass.
        """
        kind, expression = ext.get("expressionType"), ext.get("subscription")
        try:
            if is_tag_type(kind):
                return self._filter_cache.tag_filter(expression)
            if expression:
                self._check_filter_enabled(kind)
            return self._filter_cache.sql_filter(kind, expression)
        except ValueError as error:
            explained = bool(expression) and not is_tag_type(kind)
            raise subscription_refusal(error, explained=explained) from error

    def _filter_of_subscription(
        self, group_config: SubscriptionGroupConfig, topic: str, version: int
    ) -> MessageFilter:
        """Return the filter of the subscription in the group's heartbeats. Raises RequestError."""
        group = group_config.group_name
        consumers = self._clients.consumer_group(group)
        if consumers is None:
            remark = f"the consumer's group info not exist{FAQ}"
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if not group_config.consume_broadcast_enable and consumers.is_broadcasting:
            remark = f"the consumer group[{group}] can not consume by broadcast way"
            raise _forbidden(FORBIDDEN_BROADCAST, remark)
        if self._groups.is_forbidden(group, topic):
            remark = f"the consumer group[{group}] is forbidden for topic[{topic}]"
            raise _forbidden(FORBIDDEN_SUBSCRIPTION, remark)
        subscription = consumers.subscriptions.get(topic)
        if subscription is None:
            remark = f"the consumer's subscription not exist{FAQ}"
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
        if subscription.sub_version < version:
            remark = "the consumer's subscription not latest"
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
        if is_tag_type(subscription.expression_type):
            try:
                return self._filter_cache.tag_filter(subscription.sub_string)
            except ValueError as error:
                raise subscription_refusal(error) from error
        data = self._filters.require_latest(topic, group, version)
        self._check_filter_enabled(subscription.expression_type)
        return self._filters.message_filter(data, retried=self._config.filter_support_retry)

    def _check_filter_enabled(self, expression_type: str | None) -> None:
        """Refuse filters other than tags unless they are enabled."""
        if not self._config.enable_property_filter:
            remark = f"The broker does not support consumer to filter message by {expression_type}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)

    # -- reading and waiting ----------------------------------------------------------------------------------------

    def _answer_reset(self, command: Command, pull: CheckedPull) -> bytes | None:
        """Return the answer that moves a consumer to its reset offset; None without a waiting reset."""
        topic, queue_id = pull.topic, pull.queue_id
        offset = self._offsets.take_reset(pull.group, topic, queue_id)
        if offset is None:
            return None
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        broker_id = self._slave_reads.suggest_broker(pull.group_config)
        ext = _answer_fields(pull, offset, low, high, broker_id)
        code = ResponseCode.PULL_OFFSET_MOVED
        return encode_response(command.opaque, code, ext, b"", "OFFSET_RESET")

    def _answer_moved_broadcast(
        self, connection: Connection, command: Command, pull: CheckedPull
    ) -> bytes | None:
        """Record the offset of a broadcasting client; return the answer that corrects it, None when it is right."""
        proxied = pull.request_source == PROXY_FOR_BROADCAST
        proxy_client_id = command.ext.get("proxyFrowardClientId", "") if proxied else None
        member = self._broadcasts.find_member(connection, pull.group, proxy_client_id)
        if member is None:
            return None
        group, topic, queue_id = pull.group, pull.topic, pull.queue_id
        start = self._broadcasts.corrected_offset(member, group, topic, queue_id, pull.offset)
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        position = start if start >= 0 else min(max(pull.offset, low), high)
        self._broadcasts.record_pull(member, group, topic, queue_id, position)
        if start < 0:
            return None
        ext = _answer_fields(pull, start, 0, 0, self._slave_reads.suggest_broker(pull.group_config))
        return encode_response(command.opaque, ResponseCode.PULL_OFFSET_MOVED, ext, b"", "OFFSET_RESET")

    def _read_messages(self, pull: CheckedPull, offset: int) -> ReadResult:
        message_filter = pull.message_filter
        result = self._store.read(
            pull.topic,
            pull.queue_id,
            offset,
            pull.max_messages,
            pull.max_bytes,
            message_filter.tags,
            message_filter.message,
            message_filter.sql_selector,
        )
        if result.status is ReadStatus.OFFSET_OVERFLOW_BADLY and self._store.may_have_deleted_messages(
            pull.topic
        ):
            # The client's offset is from before the topic was deleted and created again. Moved to the end, as in the
            # official broker, it would never get the messages sent since.
            result.next_offset = result.min_offset
        return result

    def _may_hold(self, command: Command, pull: CheckedPull) -> bool:
        """Tell whether a pull may wait; if so, its filter is held in the cache."""
        message_filter = pull.message_filter
        expression = None if message_filter.key is None else message_filter.key[1]
        return (
            len(self._long_polls) < self._config.limits.max_long_polls
            and keep_header(command, "subscription", expression)
            and self._filter_cache.hold(message_filter)
        )

    def _wait_ms(self, pull: CheckedPull) -> int:
        config = self._config
        wait_ms = pull.suspend_timeout_ms if config.long_polling_enable else config.short_polling_time_ms
        return min(wait_ms, config.limits.max_suspend_ms)

    def try_held(self, held: "_HeldPull") -> bytes | None:
        """Return the answer to a waiting pull; None without a message for it.

        Messages that its filter rejects advance its position but do not end its wait.
        """
        pull = held.pull
        moved = self._answer_reset(held.command, pull)
        if moved is not None:
            return moved
        result = self._read_messages(pull, held.position)
        if result.status is NO_MATCHED_MESSAGE and held.position < result.next_offset:
            held.position = result.next_offset
            held.is_unfinished = result.next_offset < result.max_offset
            return None
        code = self._response_code(result, held.position)
        if code == NOT_FOUND:
            return None
        self._offsets.record_pull(pull.group, pull.topic, pull.queue_id, result.next_offset)
        return self._encode_answer(held.command, pull, result, code)

    def answer_expired(self, held: "_HeldPull") -> bytes | None:
        """Return the answer to a pull at its deadline, with or without messages."""
        return self._pull_or_wait(held.connection, held.command, may_wait=False)

    def release_held(self, held: "_HeldPull") -> None:
        """Give up the filter of a pull that waits no longer."""
        self._filter_cache.release(held.pull.message_filter)

    # -- answering --------------------------------------------------------------------------------------------------

    def _response_code(self, result: ReadResult, offset: int) -> int:
        if result.status in EMPTY_QUEUE:
            code = ResponseCode.PULL_OFFSET_MOVED if offset else NOT_FOUND
        else:
            code = CODE_OF_STATUS[result.status]
        return code if code == ResponseCode.SUCCESS else self._slave_reads.adjust_code(code, result, offset)

    def _encode_answer(self, command: Command, pull: CheckedPull, result: ReadResult, code: int) -> bytes:
        broker_id = self._slave_reads.suggest_broker(pull.group_config, is_behind=result.suggest_slave)
        ext = _answer_fields(pull, result.next_offset, result.min_offset, result.max_offset, broker_id)
        body: bytes | memoryview = b""
        if code != ResponseCode.SUCCESS:
            self._stats.missed_pulls += 1
        else:
            body = result.chunks[0] if len(result.chunks) == 1 else b"".join(result.chunks)
            self._got[pull.group, pull.topic].count_messages(result.count, len(body))
            if self._quotas.pulling:
                self._quotas.consume(PULL, pull.topic, result.count, len(body))
        return encode_response(command.opaque, code, ext, body, result.status.name)


class _HeldPull(WaitingPull):
    """A waiting pull. ``position`` is the queue offset up to which its filter has rejected everything."""

    __slots__ = ("_handler", "command", "is_unfinished", "position", "pull")

    def __init__(
        self, handler: PullHandler, connection: Connection, command: Command, pull: CheckedPull
    ) -> None:
        super().__init__(connection, pull.message_filter.tag_codes)
        self._handler = handler
        self.command = command
        self.pull = pull
        self.position = pull.offset
        self.is_unfinished = False

    def try_answer(self, start: int) -> WaitOutcome:
        self.position = max(self.position, start)
        self.is_unfinished = False
        if self.connection.answer_late(self.command, partial(self._handler.try_held, self)):
            return ANSWERED
        return UNFINISHED if self.is_unfinished else NOTHING

    def expire(self) -> None:
        self.connection.answer_late(self.command, partial(self._handler.answer_expired, self))

    def release(self) -> None:
        self._handler.release_held(self)


def _answer_fields(
    pull: CheckedPull, next_offset: int, min_offset: int, max_offset: int, broker_id: int
) -> dict[str, str]:
    group_config = pull.group_config
    return {
        "suggestWhichBrokerId": str(broker_id),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(min_offset),
        "maxOffset": str(max_offset),
        "topicSysFlag": str(pull.topic_config.topic_sys_flag),
        "groupSysFlag": str(group_config.group_sys_flag),
    }


def _forbidden(forbidden_type: int, remark: str) -> RequestError:
    """Return a refusal with the field of pull answers that says what is forbidden."""
    return RequestError(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(forbidden_type)})


def _refuse_queue(connection: Connection, config: TopicConfig, queue_id: int) -> None:
    host, port = connection.remote
    raise RequestError(
        ResponseCode.INVALID_PARAMETER,
        f"queueId[{queue_id}] is illegal, topic:[{config.topic_name}] "
        f"topicConfig.readQueueNums:[{config.read_queue_nums}] consumer:[/{host}:{port}]",
    )
