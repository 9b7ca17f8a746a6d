"""The gateway as a producer at the target: it registers producer groups and answers the target's check-backs.

A half message that the gateway sent to the target makes the target ask its producer group how the transaction ended.
While half messages of a group are open, the gateway is registered as a producer of that group, so that these
check-backs arrive here; afterwards only the group's real producers remain. The decisions themselves are in
`half_messages.py`.
"""

import logging
from itertools import islice
from typing import Final, Protocol

import trio

from codec.command import Command
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
from gateway.shadow.mirror.half_messages import FINAL_DECISIONS, CopyPlace, HalfMessage, HalfMessages
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.connection import Connection, Handler
from remoting.requests.client import HeartBeat, UnregisterClient
from remoting.requests.transaction import CheckTransactionState, EndTransaction

log = logging.getLogger(__name__)

MAX_GROUPS: Final = 1_000
"""Producer groups registered at one broker of the target; check-backs for further ones are not answered. Each new group
sends a heartbeat with all of them, and clients make up names of groups."""
HEARTBEAT_INTERVAL_S: Final = 30.0
"""Brokers forget clients that are silent for two minutes. Source: ProducerManager.CHANNEL_EXPIRED_TIMEOUT, 5.4.0."""


class MakeCluster(Protocol):
    """Makes a cluster with connections of its own; ``handlers`` answer the requests of its brokers."""

    def __call__(self, handlers: dict[int, Handler]) -> Cluster: ...


class CheckBackProducer:
    """Sends heartbeats under the groups of open half messages, and answers check-backs for them.

    ``client_id`` names this process at the target. The cluster is made here, because its connections need the handler
    of check-backs, and the handler needs the cluster.
    """

    def __init__(self, client_id: str, halves: HalfMessages, make_target: MakeCluster) -> None:
        self.target = make_target({CheckTransactionState.code: self._on_check_back})
        self.check_backs_total = 0
        self.unknown_total = 0
        """Check-backs for half messages that the gateway did not send, or has forgotten."""
        self._client_id = client_id
        self._halves = halves
        self._registered: dict[str, set[str]] = {}
        self._connections: dict[str, Connection] = {}
        self._source_brokers: dict[str, str] = {}

    def map_broker(self, broker: str, target_broker: str) -> None:
        """Note which broker of the source belongs to a broker of the target."""
        self._source_brokers[target_broker] = broker

    async def register_group(self, target_broker: str, group: str) -> None:
        """Register as a producer of a group over the connection in use. Raises CLUSTER_ERRORS of `cluster`."""
        connection = await self.target.connection(await self.target.find_master(target_broker))
        groups = self._registered.setdefault(target_broker, set())
        # Registered over this very connection. A broker forgets the producers of a connection that ended.
        if group in groups and self._connections.get(target_broker) is connection:
            return
        if group not in groups and len(groups) >= MAX_GROUPS:
            return
        groups.add(group)
        self._connections[target_broker] = connection
        await self._send_heartbeat(target_broker, groups)

    async def _send_heartbeat(self, target_broker: str, groups: set[str]) -> None:
        data = HeartbeatData(
            client_id=self._client_id,
            producer_data_set=[ProducerData(group_name=name) for name in sorted(groups)],
        )
        await self.target.ask_broker(target_broker, HeartBeat(data=data))

    async def run(self) -> None:
        """Renew groups with open half messages and unregister the others, until cancelled."""
        while True:
            await trio.sleep(HEARTBEAT_INTERVAL_S)
            for target_broker in list(self._registered):
                try:
                    await self._renew_groups(target_broker)
                except (*CLUSTER_ERRORS, KeyError) as problem:
                    log.info("heartbeat to mirror target failed", extra={"reason": str(problem)})

    async def _renew_groups(self, target_broker: str) -> None:
        registered = self._registered[target_broker]
        needed = self._halves.open_groups(self._source_brokers.get(target_broker, target_broker))
        # Otherwise the target would ask the gateway about transactions of producers that have moved there.
        for group in sorted(registered - needed):
            request = UnregisterClient(client_id=self._client_id, producer_group=group)
            await self.target.ask_broker(target_broker, request)
            registered.discard(group)
        needed = set(islice(sorted(needed), MAX_GROUPS))
        if needed:
            self._registered[target_broker] = needed
            address = await self.target.find_master(target_broker)
            self._connections[target_broker] = await self.target.connection(address)
            await self._send_heartbeat(target_broker, needed)

    def _on_check_back(self, connection: Connection, command: Command) -> None:
        """Answer CHECK_TRANSACTION_STATE with the decision of the source's producer, if there is one yet."""
        check = CheckTransactionState.from_command(command)
        self.check_backs_total += 1
        match = self._find_half(connection, check.transaction_id or check.msg_id or "")
        if match is None:
            self.unknown_total += 1
            return
        target_broker, half = match
        copy = CopyPlace(check.tran_state_table_offset, check.commit_log_offset)
        end = self._halves.answer_check_back(half, copy, trio.current_time())
        # Without a decision there is no answer: the target asks again later.
        if end in FINAL_DECISIONS:
            connection.spawn(
                self._send_end, target_broker, half, build_end_request(half, target_broker, end, copy)
            )

    async def _send_end(self, target_broker: str, half: HalfMessage, end: EndTransaction) -> None:
        """Send the end of a transaction. A failure does no harm, because the target asks again."""
        try:
            await self.target.ask_broker(target_broker, end)
        except (*CLUSTER_ERRORS, KeyError) as problem:
            log.info("answer to a check-back failed", extra={"reason": str(problem)})
        else:
            # Only after the answer: until then a check-back is answered again.
            half.ended = True
            self._halves.note_change()

    def _find_half(self, connection: Connection, unique_key: str) -> tuple[str, HalfMessage] | None:
        for target_broker, producer_connection in self._connections.items():
            if producer_connection is connection:
                half = self._halves.find_half(
                    self._source_brokers.get(target_broker, target_broker), unique_key
                )
                return None if half is None else (target_broker, half)
        return None


def build_end_request(half: HalfMessage, target_broker: str, end: int, copy: CopyPlace) -> EndTransaction:
    """Build the request that ends a copy of a half message.

    It claims to answer a check-back, because the broker refuses a late end otherwise.
    Source: EndTransactionProcessor.rejectCommitOrRollback, 5.4.0.
    """
    return EndTransaction(
        topic=half.topic,
        producer_group=half.group,
        tran_state_table_offset=copy.queue_offset,
        commit_log_offset=copy.physical_offset,
        commit_or_rollback=end,
        from_transaction_check=True,
        msg_id=half.unique_key,
        transaction_id=half.unique_key,
        bname=target_broker,
    )
