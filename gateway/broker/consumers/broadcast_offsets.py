"""Records the pull offsets of broadcasting clients, so that a client can move between a proxy and this broker.

In a broadcasting group each client has offsets of its own, which it stores itself. The broker records where each
client pulls, and commits the smallest offset per queue as the consumer offset of the group ``group@broadcast``.
"""

import logging
from collections.abc import Iterator
from typing import Final, NamedTuple

from gateway.broker.consumers.broker_tables import BrokerTables
from gateway.broker.topics.name_validation import MAX_CLIENT_ID_CHARS
from gateway.config.process import BrokerConfig
from remoting.connection import Connection
from remoting.errors import RequestError
from storage.store import MessageStore

log = logging.getLogger(__name__)

SCAN_INTERVAL_S: Final = 5.0
PROXY_FOR_BROADCAST: Final = 1
"""A pull's ``requestSource`` when a proxy pulls for a broadcasting client. Source: RequestSource, 5.4.0."""
PASSIVELY: Final = "CONSUME_PASSIVELY"


class BroadcastMember(NamedTuple):
    """A broadcasting client that pulls, itself or through a proxy."""

    client_id: str
    by_proxy: bool


class PullPosition:
    """One client's last pull offsets in one topic, by queue; ``last_seen_s`` is monotonic."""

    __slots__ = ("by_proxy", "last_seen_s", "offsets")

    def __init__(self, by_proxy: bool, last_seen_s: float) -> None:
        self.by_proxy = by_proxy
        self.last_seen_s = last_seen_s
        self.offsets: dict[int, int] = {}


def broadcast_group(group: str) -> str:
    """Return the name under which a broadcasting group's offsets are committed."""
    return f"{group}@broadcast"


def is_first_message_in_memory(store: MessageStore, topic: str, queue_id: int) -> bool:
    """Tell whether message 0 of a queue can be read without the disk. Source: checkInMemByConsumeOffset, 5.4.0."""
    result = store.read(topic, queue_id, 0, 1)
    return result.count > 0 and not result.suggest_slave


class BroadcastOffsets:
    """Pull offsets of all broadcasting clients.

    Source: BroadcastOffsetManager and PullMessageProcessor.queryBroadcastPullInitOffset, 5.4.0.
    """

    def __init__(self, config: BrokerConfig, tables: BrokerTables, store: MessageStore) -> None:
        self._config = config
        self._clock = store.clock
        self._clients = tables.clients
        self._offsets = tables.offsets
        self._store = store
        self._positions: dict[tuple[str, str], dict[str, PullPosition]] = {}
        self._offset_count = 0

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._config = config

    def find_member(
        self, connection: Connection, group: str, proxy_client_id: str | None
    ) -> BroadcastMember | None:
        """Return the broadcasting client that a pull is for; None for one that does not broadcast, or is unknown.

        ``proxy_client_id`` is the id that a proxy gives for the client for which it pulls.
        """
        if not self._config.enable_broadcast_offset_store:
            return None
        if proxy_client_id is not None:
            is_valid = len(proxy_client_id) <= MAX_CLIENT_ID_CHARS
            return BroadcastMember(proxy_client_id, by_proxy=True) if is_valid else None
        members = self._clients.consumer_group(group)
        if members is None or not members.is_broadcasting or members.consume_type != PASSIVELY:
            return None
        client = members.clients.get(connection)
        return None if client is None else BroadcastMember(client.client_id, by_proxy=False)

    def corrected_offset(
        self, member: BroadcastMember, group: str, topic: str, queue_id: int, offset: int
    ) -> int:
        """Return the offset at which a client must pull instead of ``offset``; -1 when ``offset`` is right.

        A client behind a proxy is corrected when it has no offset, and any client when it moved from or to a proxy.
        """
        progress = self._positions.get((topic, group), {}).get(member.client_id)
        if progress is None:
            return self._known_offset(None, group, topic, queue_id) if member.by_proxy and offset < 0 else -1
        wants_one = progress.by_proxy and offset < 0
        if wants_one or progress.by_proxy != member.by_proxy:
            return self._known_offset(progress, group, topic, queue_id)
        return -1

    def _known_offset(self, progress: PullPosition | None, group: str, topic: str, queue_id: int) -> int:
        offset = -1 if progress is None else progress.offsets.get(queue_id, -1)
        if offset < 0:
            offset = self._offsets.query_offset(broadcast_group(group), topic, queue_id)
        if offset < 0 and not is_first_message_in_memory(self._store, topic, queue_id):
            offset = self._store.max_offset(topic, queue_id)
        return max(0, offset)

    def record_pull(
        self, member: BroadcastMember, group: str, topic: str, queue_id: int, offset: int
    ) -> None:
        """Record the offset of a client's pull. An offset before the last one changes nothing.

        A client beyond ``maxMembersPerGroup`` is not recorded, because a proxy names clients that no heartbeat
        registered; nor is an offset beyond ``maxCommittedOffsets``, which also bounds the offsets of all these clients.
        """
        limits = self._config.limits
        clients = self._positions.get((topic, group), {})
        now_s = self._clock.monotonic()
        progress = clients.get(member.client_id)
        if progress is None:
            if len(clients) >= limits.max_members_per_group:
                return
            progress = PullPosition(member.by_proxy, now_s)
        if queue_id not in progress.offsets:
            if self._offset_count >= limits.max_committed_offsets:
                return
            self._offset_count += 1
            clients[member.client_id] = progress
            self._positions[topic, group] = clients
        progress.last_seen_s, progress.by_proxy = now_s, member.by_proxy
        progress.offsets[queue_id] = max(offset, progress.offsets.get(queue_id, offset))

    def forget_topic(self, topic: str) -> None:
        """Forget the positions of all clients in a deleted topic."""
        for key in [key for key in self._positions if key[0] == topic]:
            for progress in self._positions.pop(key).values():
                self._offset_count -= len(progress.offsets)

    def commit_and_expire(self) -> Iterator[None]:
        """Commit the smallest offset of each queue, and forget clients that have been silent for too long.

        Other tasks may run at each yield.
        """
        for (topic, group), clients in list(self._positions.items()):
            yield
            smallest: dict[int, int] = {}
            members = self._clients.consumer_group(group)
            online_ids = set(members.client_ids()) if members else set()
            for client_id, progress in list(clients.items()):
                silent_s = self._clock.monotonic() - progress.last_seen_s
                online = client_id in online_ids
                if online or silent_s < self._config.broadcast_offset_expire_s:
                    for queue_id, offset in progress.offsets.items():
                        smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
                if silent_s >= self._longest_silence_s(online):
                    del clients[client_id]
                    self._offset_count -= len(progress.offsets)
            if not clients:
                self._positions.pop((topic, group), None)
            self._commit_offsets(topic, group, smallest)

    def _commit_offsets(self, topic: str, group: str, offsets: dict[int, int]) -> None:
        try:
            for queue_id, offset in offsets.items():
                self._offsets.commit_offset(broadcast_group(group), topic, queue_id, offset)
        except RequestError as error:
            extra = {"group": group, "topic": topic, "reason": error.remark}
            log.warning("offsets of a broadcasting group not committed", extra=extra)

    def _longest_silence_s(self, online: bool) -> int:
        config = self._config
        return config.broadcast_offset_expire_max_s if online else config.broadcast_offset_expire_s
