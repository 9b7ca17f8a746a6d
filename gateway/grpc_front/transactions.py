"""EndTransaction, and the transactions that may be ended. Source: EndTransactionActivity, AbstractTransactionService,
TransactionDataManager, 5.4.0.

A client ends a transaction by its id alone, but the broker needs the place of the half message as well, which this
front remembers from the send or from the broker's last check-back. After a restart of the server only a check-back
brings it back, as with the official Proxy.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from codec.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from gateway.grpc_front import messages
from gateway.grpc_front.cluster import ServedCluster
from gateway.grpc_front.names import check_topic
from gateway.grpc_front.rpc import Method, Rpc, unary
from gateway.grpc_front.statuses import OK, StatusError
from remoting.requests.transaction import EndTransaction

MAX_OPEN_TRANSACTIONS: Final = 100_000
"""Beyond these the oldest ones are forgotten, so that only a check-back can end them."""
_DECISIONS: Final = {messages.COMMIT: TRANSACTION_COMMIT, messages.ROLLBACK: TRANSACTION_ROLLBACK}


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The place of a half message."""

    broker_name: str
    queue_offset: int
    physical_offset: int


class OpenTransactions:
    """Half messages by their topic and transaction id."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[tuple[str, str], OpenTransaction] = OrderedDict()
        self._locks: dict[tuple[str, str], trio.Lock] = {}
        """One for each transaction that is being decided."""

    def add(self, topic: str, transaction_id: str, transaction: OpenTransaction) -> None:
        """Remember a half message; a later place of the same one replaces the former."""
        self._by_id[topic, transaction_id] = transaction
        self._by_id.move_to_end((topic, transaction_id))
        if len(self._by_id) > MAX_OPEN_TRANSACTIONS:
            self._by_id.popitem(last=False)

    @asynccontextmanager
    async def deciding(self, topic: str, transaction_id: str) -> AsyncIterator[OpenTransaction | None]:
        """Yield a half message while one decision about it is carried out; others wait.

        A second decision must not be carried out, so `forget` it within the block once the first one was. If that fails
        or is cancelled, the half message stays: perhaps nothing was decided, and its owner may still do so.
        """
        key = topic, transaction_id
        lock = self._locks.setdefault(key, trio.Lock())
        try:
            async with lock:
                yield self._by_id.get(key)
        finally:
            statistics = lock.statistics()
            if not statistics.locked and not statistics.tasks_waiting:
                self._locks.pop(key, None)

    def forget(self, topic: str, transaction_id: str) -> None:
        """Forget a half message that is decided."""
        self._by_id.pop((topic, transaction_id), None)


class TransactionMethods:
    """The RPC that ends transactions."""

    def __init__(self, cluster: ServedCluster, transactions: OpenTransactions) -> None:
        self._cluster = cluster
        self._transactions = transactions

    def methods(self) -> dict[str, Method]:
        """Return the RPCs by name."""
        return {
            "EndTransaction": unary(
                messages.EndTransactionRequest, messages.EndTransactionResponse, self.end_transaction
            ),
        }

    async def end_transaction(
        self, rpc: Rpc, request: messages.EndTransactionRequest
    ) -> messages.EndTransactionResponse:
        """Commit or roll back a half message; the producer group of 5.x clients is the topic.

        Deviation: the broker's refusal is the answer. The official Proxy sends the decision oneway, and answers OK.
        """
        topic, transaction_id = check_topic(request.topic), request.transaction_id
        if not transaction_id.strip():
            raise StatusError(messages.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        async with self._transactions.deciding(topic, transaction_id) as transaction:
            await self._decide(rpc, request, transaction)
        return messages.EndTransactionResponse(status=OK)

    async def _decide(
        self, rpc: Rpc, request: messages.EndTransactionRequest, transaction: OpenTransaction | None
    ) -> None:
        """Send the decision to the broker of a half message. Raises StatusError, RequestError."""
        topic = request.topic.name
        broker = None if transaction is None else self._cluster.broker(transaction.broker_name)
        if transaction is None or broker is None:
            raise StatusError(
                messages.INTERNAL_SERVER_ERROR,
                "cannot found transaction data: it was ended already, or the server was restarted since; "
                "the next check-back decides",
            )
        end = EndTransaction(
            topic=topic,
            producer_group=topic,
            tran_state_table_offset=transaction.queue_offset,
            commit_log_offset=transaction.physical_offset,
            commit_or_rollback=_DECISIONS.get(request.resolution, TRANSACTION_NONE),
            from_transaction_check=request.source == messages.SOURCE_SERVER_CHECK,
            msg_id=request.message_id,
            transaction_id=request.transaction_id,
            bname=broker.name,
        )
        link = self._cluster.link(rpc.connection, broker)
        if end.commit_or_rollback == TRANSACTION_NONE:
            # Brokers do not answer a producer that has not decided.
            link.post(end, rpc.sender)
        else:
            await link.call(end, rpc.sender)
            self._transactions.forget(topic, request.transaction_id)
