"""Keeps messages invisible while their push consumers work on them.

Push consumers ask for it (``auto_renew``): their messages are popped for a minute, and before it is over the time is
prolonged, until the consumer acknowledges or gives the message back, or is gone. The consumer knows the first receipt
handle only; the one that counts is kept here.
Source: DefaultReceiptHandleManager, RenewStrategyPolicy, 5.4.0.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from codec.constants import ResponseCode
from gateway.auth.access_control import AccessDenied
from gateway.broker.processors.turns import end_turn
from gateway.grpc_front.access import RpcSender
from gateway.grpc_front.broker_link import BrokerLink
from gateway.grpc_front.clients import Clients
from gateway.grpc_front.cluster import ServedCluster
from gateway.grpc_front.receipts import MessageReceipt
from gateway.grpc_front.statuses import StatusError
from remoting.connection import Connection
from remoting.errors import RemotingClosed, RemotingTimeout, RequestError
from remoting.requests.pop import ChangeMessageInvisibletime

log = logging.getLogger(__name__)

RENEWED_INVISIBLE_MS: Final = 60_000
RENEW_AHEAD_MS: Final = 10_000
RENEW_INTERVAL_S: Final = 5.0
MAX_RENEWED_MS: Final = 3 * 3600 * 1000
MAX_HELD: Final = 100_000
"""Messages of all consumers that are renewed. Further ones are delivered again after a minute."""
CHANGE_TIMEOUT_S: Final = 3.0
MAX_RENEWAL_S: Final = 5.0
"""Longest time for a renewal, that of opening a connection included."""
MAX_RENEWING_BROKERS: Final = 16
"""Brokers whose messages are renewed at the same time."""
ABANDONED_INVISIBLE_MS: Final = 1_000
"""Invisible time of the messages of a consumer that is gone."""
_PASSING_CODES: Final = frozenset(
    (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SLAVE_NOT_AVAILABLE)
)
"""Refusals of a broker that is busy, or is not the master just now."""
_STEPS_MS: Final = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))


@dataclass(slots=True)
class HeldMessage:
    """A message that a consumer works on, with the handle that counts now."""

    client_id: str
    group: str
    topic: str
    receipt: MessageReceipt
    sender: RpcSender
    peer: Connection
    since_ms: int
    renewals: int = field(default=0)

    def change(self, invisible_ms: int) -> ChangeMessageInvisibletime:
        """Return the request that changes its invisible time."""
        return ChangeMessageInvisibletime(
            consumer_group=self.group,
            topic=self.receipt.real_topic(self.topic, self.group),
            queue_id=self.receipt.queue_id,
            extra_info=self.receipt.text,
            offset=self.receipt.offset,
            invisible_time=invisible_ms,
            bname=self.receipt.broker_name,
        )

    def next_invisible_ms(self) -> int:
        """Return the next invisible time: longer each time."""
        return _STEPS_MS[min(self.renewals, len(_STEPS_MS) - 1)]


Key = tuple[str, str, str]


class Renewals:
    """All messages that are renewed, by client, group and the handle that the client knows."""

    def __init__(self, cluster: ServedCluster, clients: Clients) -> None:
        self._cluster = cluster
        self._clients = clients
        self._held: dict[Key, HeldMessage] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, held: HeldMessage) -> None:
        """Renew a message from now on."""
        if len(self._held) < MAX_HELD:
            self._held[held.client_id, held.group, held.receipt.text] = held

    @contextmanager
    def released(self, client_id: str, group: str, text: str) -> Iterator[MessageReceipt]:
        """Yield the handle that stands for a client's one now; the message is renewed no longer.

        It is still renewed if the block fails or is cancelled, except by a refusal that is final: the client knows no
        handle but its first one to try again with. Raises StatusError for a handle that cannot be read.
        """
        key = client_id, group, text
        held = self._held.pop(key, None)
        try:
            yield MessageReceipt.parse(text) if held is None else held.receipt
        except BaseException as error:
            if held is not None and not _is_final(error):
                self._held[key] = held
            raise

    async def run(self) -> None:
        """Renew messages until cancelled."""
        while True:
            await trio.sleep(RENEW_INTERVAL_S)
            await self.renew_due()

    async def renew_due(self) -> None:
        """Renew the messages whose invisible time ends soon, and return those of consumers that are gone.

        Each broker has a task of its own, so that a slow one holds up its own messages only.
        """
        due: dict[str, list[tuple[Key, HeldMessage]]] = {}
        for number, (key, held) in enumerate(list(self._held.items())):
            await end_turn(number)
            if self._is_gone(held) or self._remaining_ms(held) <= RENEW_AHEAD_MS:
                due.setdefault(held.receipt.broker_name, []).append((key, held))
        limiter = trio.CapacityLimiter(MAX_RENEWING_BROKERS)
        async with trio.open_nursery() as nursery:
            for messages in due.values():
                nursery.start_soon(self._renew_at_broker, messages, limiter)

    def _is_gone(self, held: HeldMessage) -> bool:
        return held.peer.closed and self._clients.get(held.client_id) is None

    def _remaining_ms(self, held: HeldMessage) -> int:
        return held.receipt.visible_ms - self._cluster.clock.now_ms()

    async def _renew_at_broker(
        self, messages: list[tuple[Key, HeldMessage]], limiter: trio.CapacityLimiter
    ) -> None:
        """Renew messages of one broker, until it does not answer: the others are tried again at the next pass."""
        gone_links: list[BrokerLink] = []
        is_silent = False
        async with limiter:
            try:
                for number, (key, held) in enumerate(messages):
                    await end_turn(number)
                    if self._held.get(key) is not held:
                        continue  # It was released while other tasks ran.
                    try:
                        is_held = await self._renew(held, gone_links)
                    except (RemotingClosed, RemotingTimeout) as error:
                        log.info("message not renewed", extra={"group": held.group, "reason": str(error)})
                        is_silent = True
                        is_held = self._remaining_ms(held) > 0
                    except Exception:
                        # One message must not end the task that renews those of all other consumers.
                        log.exception("message not renewed any more", extra={"group": held.group})
                        is_held = False
                    if not is_held:
                        self._held.pop(key, None)
                    if is_silent:
                        break
            finally:
                for link in gone_links:
                    link.close("the pass has ended")

    async def _renew(self, held: HeldMessage, gone_links: list[BrokerLink]) -> bool:
        """Do what is due for a message; return False if it is held no longer. See `_change`."""
        if self._is_gone(held):
            await self._change(held, ABANDONED_INVISIBLE_MS, gone_links)
            return False
        is_over = self._cluster.clock.now_ms() - held.since_ms > MAX_RENEWED_MS
        return not is_over and await self._change(held, held.next_invisible_ms(), gone_links)

    async def _change(self, held: HeldMessage, invisible_ms: int, gone_links: list[BrokerLink]) -> bool:
        """Change the invisible time of a message; return False if that was refused.

        The first link of a consumer that is gone stays open in ``gone_links``: brokers elsewhere have one connection
        for all of these while it is used. Raises RemotingClosed, RemotingTimeout.
        """
        broker = self._cluster.broker(held.receipt.broker_name)
        if broker is None:
            return False
        link = self._cluster.open_link(held.peer, broker)
        is_gone = held.peer.closed
        try:
            with trio.move_on_after(MAX_RENEWAL_S) as limit:
                reply = await link.call(held.change(invisible_ms), held.sender, timeout_s=CHANGE_TIMEOUT_S)
            if limit.cancelled_caught:
                raise RemotingTimeout(f"broker {broker.name} was not reached within {MAX_RENEWAL_S} s")
        except RequestError as error:
            log.info("message not renewed", extra={"group": held.group, "reason": str(error)})
            return False
        finally:
            if is_gone and not gone_links:
                gone_links.append(link)
            else:
                link.close("the renewal is over")
        held.receipt = held.receipt.renewed(reply.pop_time, reply.invisible_time, reply.revive_qid)
        held.renewals += 1
        return True


def _is_final(error: BaseException) -> bool:
    """Tell whether a refusal is about the message or its handle, so that a repetition would be refused as well."""
    if isinstance(error, RequestError):
        return not isinstance(error, AccessDenied) and error.code not in _PASSING_CODES
    return isinstance(error, StatusError)
