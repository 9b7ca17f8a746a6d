"""Records the pull offsets of broadcasting clients, so that a client can move between a proxy and this broker.

In a broadcasting group each client has offsets of its own, which it stores itself. The broker records where each
client pulls, and commits the smallest offset per queue as the consumer offset of the group ``group@broadcast``.
"""

from typing import Final, NamedTuple

from gateway.broker.shared_parts import BrokerTables
from gateway.config.process import BrokerConfig
from remoting.connection import Connection
from storage.store import MessageStore

SCAN_INTERVAL_S: Final = 5.0
PROXY_FOR_BROADCAST: Final = 1
"""A pull's ``requestSource`` when a proxy pulls for a broadcasting client. Source: RequestSource, 5.4.0."""
PASSIVELY: Final = "CONSUME_PASSIVELY"
MAX_CLIENT_ID_CHARS: Final = 255


class BroadcastMember(NamedTuple):
    """A broadcasting client that pulls, itself or through a proxy."""

    client_id: str
    by_proxy: bool


class PullPosition:
    """One client's last pull offsets in one topic, by queue; ``last_seen_s`` is monotonic."""

    __slots__ = ("by_proxy", "last_seen_s", "offsets")

    def __init__(self, by_proxy: bool, seen: float) -> None:
        self.by_proxy = by_proxy
        self.last_seen_s = seen
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

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        self._config = config

    def find_member(
        self, connection: Connection, group: str, proxy_client_id: str | None
    ) -> BroadcastMember | None:
        """Return the broadcasting client behind a pull; None for one that does not broadcast, or is unknown.

        ``proxy_client_id`` is the id that a proxy gives for the client for which it pulls.
        """
        if not self._config.enable_broadcast_offset_store:
            return None
        if proxy_client_id is not None:
            known = len(proxy_client_id) <= MAX_CLIENT_ID_CHARS
            return BroadcastMember(proxy_client_id, by_proxy=True) if known else None
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

        A client beyond ``maxMembersPerGroup`` is not recorded: a proxy names clients that no heartbeat registered.
        """
        clients = self._positions.setdefault((topic, group), {})
        now_s = self._clock.monotonic()
        progress = clients.get(member.client_id)
        if progress is None:
            if len(clients) >= self._config.limits.max_members_per_group:
                return
            progress = clients[member.client_id] = PullPosition(member.by_proxy, now_s)
        progress.last_seen_s, progress.by_proxy = now_s, member.by_proxy
        progress.offsets[queue_id] = max(offset, progress.offsets.get(queue_id, offset))

    def commit_and_expire(self) -> None:
        """Commit the smallest offset of each queue, and forget clients that have been silent for too long."""
        for (topic, group), clients in list(self._positions.items()):
            smallest: dict[int, int] = {}
            for client_id, progress in list(clients.items()):
                silent_s = self._clock.monotonic() - progress.last_seen_s
                online = self._clients.consumer(group, client_id) is not None
                if online or silent_s < self._config.broadcast_offset_expire_s:
                    for queue_id, offset in progress.offsets.items():
                        smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
                if silent_s >= self._longest_silence_s(online):
                    del clients[client_id]
            if not clients:
                del self._positions[topic, group]
            for queue_id, offset in smallest.items():
                self._offsets.commit_offset(broadcast_group(group), topic, queue_id, offset)

    def _longest_silence_s(self, online: bool) -> int:
        config = self._config
        return config.broadcast_offset_expire_max_s if online else config.broadcast_offset_expire_s
