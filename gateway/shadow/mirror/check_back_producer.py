"""The gateway as a producer at the target: known under the groups of half messages, and answering what is asked of it.

A group is registered while half messages of it are open, so that the target's questions come here; afterwards its real
producers are alone. Not responsible for what is remembered of half messages (halves is).
"""

import logging
from typing import Any, Final

import trio

from codec.command import Command
from gateway.shadow.clusters.cluster import ASKING_FAILED, Cluster
from gateway.shadow.mirror.half_messages import FINAL_DECISIONS, HalfMessage, HalfMessages
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.connection import Connection
from remoting.requests.client import HeartBeat, UnregisterClient
from remoting.requests.transaction import CheckTransactionState, EndTransaction

log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL_S: Final = 30.0
"""Brokers forget clients that are silent for two minutes. Source: ProducerManager.CHANNEL_EXPIRED_TIMEOUT, 5.4.0."""


class CheckBackProducer:
    """Heartbeats of one process; ``client_id`` names it at the target. Use `handlers` for the target's `Cluster`."""

    def __init__(self, client_id: str, halves: HalfMessages) -> None:
        self._client_id = client_id
        self._halves = halves
        self._target: Cluster | None = None
        self._registered: dict[str, set[str]] = {}
        self._connections: dict[str, Connection] = {}
        self._sources: dict[str, str] = {}
        self.check_backs_total = 0
        self.unknown_total = 0

    def handlers(self) -> dict[int, Any]:
        """What answers the target's questions."""
        return {CheckTransactionState.code: self._on_check_back}

    def serve(self, target: Cluster) -> None:
        """Says which cluster the heartbeats go to."""
        self._target = target

    def map_broker(self, broker: str, target_broker: str) -> None:
        """Says which broker of the source a target's broker stands for."""
        self._sources[target_broker] = broker

    async def register_group(self, target_broker: str, group: str) -> None:
        """Makes sure that the target knows this producer, over the connection in use. Raises ASKING_FAILED."""
        assert self._target is not None
        if target_broker not in self._target.brokers:
            await self._target.refresh()
        connection = await self._target.connection(self._target.master(target_broker))
        groups = self._registered.setdefault(target_broker, set())
        if group in groups and self._connections.get(target_broker) is connection:
            return
        groups.add(group)
        self._connections[target_broker] = connection
        await self._send_heartbeat(target_broker, groups)

    async def _send_heartbeat(self, target_broker: str, groups: set[str]) -> None:
        assert self._target is not None
        data = HeartbeatData(
            client_id=self._client_id,
            producer_data_set=[ProducerData(group_name=name) for name in sorted(groups)],
        )
        await self._target.ask(target_broker, HeartBeat(data=data))

    async def run(self) -> None:
        """Keeps groups with open half messages known, and takes leave of the others, until cancelled."""
        while True:
            await trio.sleep(HEARTBEAT_INTERVAL_S)
            for target_broker in list(self._registered):
                try:
                    await self._renew_groups(target_broker)
                except (*ASKING_FAILED, KeyError) as problem:
                    log.info("heartbeat to mirror target failed", extra={"reason": str(problem)})

    async def _renew_groups(self, target_broker: str) -> None:
        assert self._target is not None
        known = self._registered[target_broker]
        needed = self._halves.open_groups(self._sources.get(target_broker, target_broker))
        for group in sorted(known - needed):
            request = UnregisterClient(client_id=self._client_id, producer_group=group)
            await self._target.ask(target_broker, request)
            known.discard(group)
        if needed:
            self._registered[target_broker] = set(needed)
            self._connections[target_broker] = await self._target.connection(
                self._target.master(target_broker)
            )
            await self._send_heartbeat(target_broker, needed)

    def _on_check_back(self, connection: Connection, command: Command) -> None:
        """CHECK_TRANSACTION_STATE: tells what the primary's producer decided, if it did."""
        asked = CheckTransactionState.from_command(command)
        self.check_backs_total += 1
        found = self._find_half(connection, asked.transaction_id or asked.msg_id or "")
        if found is None:
            self.unknown_total += 1
            return
        target_broker, half = found
        place = asked.tran_state_table_offset, asked.commit_log_offset
        end = self._halves.answer_check_back(half, *place, trio.current_time())
        if end in FINAL_DECISIONS:
            connection.spawn(
                self._send_end, target_broker, half, build_end_request(half, target_broker, end, place)
            )

    async def _send_end(self, target_broker: str, half: HalfMessage, end: EndTransaction) -> None:
        """A failure is no harm: the target asks again."""
        assert self._target is not None
        try:
            await self._target.ask(target_broker, end)
        except (*ASKING_FAILED, KeyError) as problem:
            log.info("end of a half message failed", extra={"reason": str(problem)})
        else:
            half.ended = True
            self._halves.note_change()

    def _find_half(self, connection: Connection, unique_key: str) -> tuple[str, HalfMessage] | None:
        for target_broker, known in self._connections.items():
            if known is connection:
                half = self._halves.find_half(self._sources.get(target_broker, target_broker), unique_key)
                return None if half is None else (target_broker, half)
        return None


def build_end_request(
    half: HalfMessage, target_broker: str, end: int, place: tuple[int, int]
) -> EndTransaction:
    """What ends the copy of a half message at a ``place`` (queue offset, physical offset) of the target.

    It says it is from a check: an end that comes late is not refused then.
    Source: EndTransactionProcessor.rejectCommitOrRollback, 5.4.0.
    """
    return EndTransaction(
        topic=half.topic,
        producer_group=half.group,
        tran_state_table_offset=place[0],
        commit_log_offset=place[1],
        commit_or_rollback=end,
        from_transaction_check=True,
        msg_id=half.unique_key,
        transaction_id=half.unique_key,
        bname=target_broker,
    )
