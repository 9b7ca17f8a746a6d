"""A client's second way: requests that are directed to the target go over a connection of their own.

It is opened for the first of them. The target then learns from the client's last heartbeat who it is, and gets each
later one as well; the primary's answers to these are the client's. Bytes are passed on as they are, signatures too,
but for the broker's name in handles of popped messages where the two brokers have different ones.
When the target goes while it owes answers, or cannot be reached, the client sees what it would see of a dead broker:
its connection ends.

Not responsible for what is directed (the hub's director is).
"""

import logging
import re
from collections import OrderedDict
from typing import Final

import trio

from codec.constants import FLAG_ONEWAY, FLAG_RESPONSE
from codec.errors import FrameError
from gateway.shadow.proxy.context import Context, Dial, Upstream
from gateway.shadow.proxy.opaques import with_opaque
from gateway.shadow.proxy.peek import Head, head_of
from gateway.shadow.proxy.pending_requests import Pending
from gateway.shadow.proxy.pop_handles import HANDLED, with_broker
from gateway.shadow.proxy.upstream_leg import Client, Leg
from gateway.shadow.traffic.exchange import Side
from remoting.requests.client import HeartBeat, UnregisterClient
from remoting.transport import Transport

log = logging.getLogger(__name__)

INTRODUCING: Final = frozenset({HeartBeat.code, UnregisterClient.code})
"""Requests by which a broker knows a client."""
_FIRST_OPAQUE: Final = -(1 << 31)
_INTRODUCTIONS: Final = 64
# A client that has said all of it once may leave out its subscriptions (useHeartbeatV2).
_WITHOUT_SUBSCRIPTIONS = re.compile(rb'"(?:isW|w)ithoutSub"\s*:\s*true')


class TargetLeg(Leg):
    """A connection to the target. Only answers to what was directed reach the client.

    What the target asks gets a number of ours, from a range that no upstream reaches in its first two billion
    questions: the primary may use the same ones.
    """

    __slots__ = ("_next_opaque", "_theirs", "renamed")

    def __init__(
        self,
        transport: Transport,
        client: Client,
        context: Context,
        nursery: trio.Nursery,
        address: str,
        name: str,
    ) -> None:
        upstream = Upstream(address, context.upstream.broker)
        super().__init__(transport, client, context, nursery, Side.TARGET, upstream)
        self._passes_bare = False
        self.renamed = name if name != upstream.broker else ""
        """The broker's own name, where clients know it by another one."""
        self._next_opaque = _FIRST_OPAQUE
        self._theirs: OrderedDict[int, int] = OrderedDict()

    @property
    def owes(self) -> bool:
        """Whether the client waits for an answer of the target."""
        return len(self._asked.waiting) > 0

    @property
    def expects_answers(self) -> bool:
        """Whether answers of the client may be for the target."""
        return bool(self._theirs)

    def remember(self, head: Head, frame: bytes) -> Pending:
        """Notes a request that is about to be passed on: no other answer reaches the client."""
        return self._note(head, frame if self._context.hub.is_observed(head.code) else b"")

    def asked(self, opaque: int) -> bool:
        """Whether an answer of the client is for the target."""
        return opaque in self._theirs

    def pass_answer(self, head: Head, frame: bytes) -> None:
        """The client answers the target."""
        self.answered_by_client(head, frame)
        self.wire.write(with_opaque(frame, self._theirs.pop(head.opaque)))

    def _pass_on(self, data: bytes, stops: list[int]) -> None:
        pieces: list[bytes] = []
        start = 0
        for stop in stops:
            head, frame = head_of(data, start, stop), data[start:stop]
            if head is not None:
                passed = self._answer(head, frame) if head.flag & FLAG_RESPONSE else self._ask(head, frame)
                if passed is not None:
                    pieces.append(passed)
            start = stop
        if pieces and not self._client.wire.write(b"".join(pieces)):
            self._wait_for_client()

    def _answer(self, head: Head, frame: bytes) -> bytes | None:
        pending = self._asked.take(head.opaque)
        return None if pending is None or self._holds(pending, frame) else frame

    def _ask(self, head: Head, frame: bytes) -> bytes | None:
        if head.flag & FLAG_ONEWAY:
            self._asks(head, frame)
            return frame
        opaque = self._next_opaque
        try:
            renamed = with_opaque(frame, opaque)
        except FrameError:
            return None
        self._next_opaque += 1
        self._asks(head._replace(opaque=opaque), frame)
        self._theirs[opaque] = head.opaque
        if len(self._theirs) > self._context.settings.remembered:
            self._theirs.popitem(last=False)
        return renamed

    def _released(self, code: int, frame: bytes) -> bytes:
        return frame


class TargetPath:
    """Where requests of one client for the target go: nowhere yet, into a row while it is dialled, or to the leg."""

    __slots__ = (
        "_client",
        "_context",
        "_dial",
        "_dialling",
        "_introduction",
        "_nursery",
        "_relieved",
        "_row",
        "leg",
    )

    def __init__(self, client: Client, context: Context, dial: Dial, nursery: trio.Nursery) -> None:
        self._client = client
        self._context = context
        self._dial = dial
        self._nursery = nursery
        self._dialling = False
        self._relieved: trio.Event | None = None
        self._row: list[tuple[Head, bytes]] = []
        self._introduction: list[bytes] = []
        self.leg: TargetLeg | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes that wait for the connection."""
        return sum(len(frame) for _, frame in self._row)

    @property
    def kept_bytes(self) -> int:
        """Bytes held for the target or from it."""
        introduction = sum(map(len, self._introduction))
        return introduction + self.row_bytes + (self.leg.kept_bytes if self.leg is not None else 0)

    @property
    def full(self) -> bool:
        """Whether no more requests should be read from the client."""
        if self.leg is not None:
            return self.leg.wire.full
        return bool(self._row) and self.row_bytes > self._context.settings.kept_bytes

    @property
    def expects_answers(self) -> bool:
        """Whether an answer of the client may be for the target."""
        return self.leg is not None and self.leg.expects_answers

    def send(self, head: Head, frame: bytes) -> None:
        """A request that is directed to the target."""
        self._context.counts.directed += 1
        if self.leg is not None:
            self._send(self.leg, head, frame)
            return
        self._row.append((head, frame))
        if not self._dialling:
            self._dialling = True
            self._nursery.start_soon(self._open)

    @staticmethod
    def _send(leg: TargetLeg, head: Head, frame: bytes) -> None:
        pending = leg.remember(head, frame)
        if leg.renamed and head.code in HANDLED:
            frame = with_broker(frame, leg.renamed)
        leg.wire.write(frame)
        leg.passed(pending, head)

    def introduce(self, head: Head, frame: bytes) -> None:
        """A heartbeat, or the end of a membership; for a target that is dialled later, the last state counts."""
        if head.code == HeartBeat.code and not _WITHOUT_SUBSCRIPTIONS.search(frame):
            self._introduction = [frame]
        elif head.code == UnregisterClient.code and len(self._introduction) < _INTRODUCTIONS:
            self._introduction.append(frame)
        if self.leg is not None:
            self.leg.wire.write(frame)

    async def _open(self) -> None:
        upstream = self._context.upstream
        try:
            with trio.fail_after(self._context.settings.connect_s):
                name, address, transport = await self._dial(upstream.broker)
        except (OSError, LookupError, trio.TooSlowError) as error:
            self._tell_reachable(False, str(error) or "no answer in time")
            self._context.counts.target_unreachable += 1
            self._client.end()
            return
        finally:
            self._dialling = False
        self._tell_reachable(True)
        leg = self.leg = TargetLeg(transport, self._client, self._context, self._nursery, address, name)
        row, self._row = self._row, []
        for greeting in self._introduction:
            leg.wire.write(greeting)
        for head, frame in row:
            self._send(leg, head, frame)
        leg.wire.start()
        self._client.leg_drained(leg)

    def stalls(self) -> None:
        """The client is read no more because of the target; that may last for a while only."""
        if self.leg is not None and self._relieved is None:
            self._relieved = trio.Event()
            self._nursery.start_soon(self._be_patient, self.leg, self._relieved)

    def relieve(self) -> None:
        """The target takes requests again, or is gone."""
        if self._relieved is not None:
            self._relieved.set()
            self._relieved = None

    async def _be_patient(self, leg: TargetLeg, relieved: trio.Event) -> None:
        with trio.move_on_after(self._context.settings.stall_s) as limit:
            await relieved.wait()
        if limit.cancelled_caught and self.leg is leg:
            log.warning("target takes no requests", extra={"upstream": leg.upstream.address})
            self._client.end()

    def _tell_reachable(self, reachable: bool, reason: str = "") -> None:
        """Says it once for all clients of a broker, each time it changes."""
        context = self._context
        if reachable == context.target_reachable:
            return
        context.target_reachable = reachable
        broker = context.upstream.broker
        if reachable:
            log.info("target is back", extra={"broker": broker})
        else:
            log.warning(
                "target cannot be reached: what is directed there ends its client's connection",
                extra={"broker": broker, "reason": reason},
            )

    @property
    def holding(self) -> bool:
        """Whether requests wait for the connection, or answers are held back for the client."""
        return self._dialling or (self.leg is not None and self.leg.holding)

    def resume(self) -> None:
        """The client takes answers again."""
        if self.leg is not None:
            self.leg.wire.resume()

    def give_up_older_than(self, asked_s: float) -> None:
        """Waits no longer for answers to what was asked before."""
        if self.leg is not None:
            self.leg.give_up_older_than(asked_s)

    def finish(self) -> None:
        """Closes when everything is sent."""
        if self.leg is not None:
            self.leg.wire.finish()

    def close(self) -> bool:
        """Closes at once; whether the client has to know, as the target owes it answers."""
        leg, self.leg = self.leg, None
        self.relieve()
        if leg is None:
            return False
        owed = leg.owes
        leg.wire.close()
        leg.forget()
        return owed

    def pass_answer(self, head: Head, frame: bytes) -> bool:
        """Passes an answer of the client on, if it is the target's."""
        if self.leg is None or not self.leg.asked(head.opaque):
            return False
        self.leg.pass_answer(head, frame)
        return True
