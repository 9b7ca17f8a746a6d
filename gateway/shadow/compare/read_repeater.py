"""Read-only requests of clients asked once more: of the target, and now and then of the primary a second time.

On connections and in tasks of its own, bounded in number, bytes and rate: never on the path of the primary's clients.
Not responsible for which requests these are (questions.py), nor for counting what was found (comparer.py).
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Final

import trio

from codec.command import Command
from codec.errors import FrameError, MessageFormatError
from gateway.shadow.clusters.cluster import ASKING_FAILED, Cluster
from gateway.shadow.compare.answer_diff import SAME, Difference, Terms, compare
from gateway.shadow.compare.noise import Noise
from gateway.shadow.compare.queue_reader import Budget
from gateway.shadow.compare.repeatable_reads import MapOffset, Question, Subscriptions, Unasked, question
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.traffic.exchange import Exchange
from remoting.errors import RequestError

log = logging.getLogger(__name__)

AT_A_TIME: Final = 8
REPEAT_S: Final = 1.0
NOT_UNDERSTOOD: Final = (FrameError, MessageFormatError, RequestError)

Ask = Callable[[str, Command], Awaitable[Command]]
"""Asks a broker by the primary's name for it, a namesrv when the name is "". Raises LookupError, ASKING_FAILED."""


def asking(cluster: Cluster, counterpart: Callable[[str], str] = lambda broker: broker) -> Ask:
    """How a cluster is asked; ``counterpart`` gives its name for a broker of the primary."""

    async def ask(broker: str, command: Command) -> Command:
        address = cluster.master(counterpart(broker)) if broker else cluster.namesrvs[0]
        return await cluster.ask_command(address, command)

    return ask


@dataclass(slots=True)
class Compared:
    """What came of one question: the exchange, what differs, and how long the target took."""

    exchange: Exchange
    differences: list[Difference]
    target_s: float


@dataclass(slots=True)
class _Waiting:
    exchange: Exchange
    second: bool
    added_s: float
    tries: int = 0
    own: frozenset[str] = field(default_factory=frozenset)


class Asker:
    """Takes exchanges with `add`, and tells what their questions found.

    A question whose answers differ is repeated, of both clusters, while what was asked about may be on its way.
    `left_out` counts exchanges that were not compared, by reason.
    """

    def __init__(
        self,
        settings: CompareSettings,
        terms: Terms,
        noise: Noise,
        *,
        target: Ask,
        primary: Ask,
        map_offset: MapOffset,
        tell: Callable[[Compared], None],
    ) -> None:
        self.left_out: Counter[str] = Counter()
        self.subscriptions = Subscriptions()
        self._settings = settings
        self._terms = terms
        self._noise = noise
        self._target, self._primary = target, primary
        self._map_offset = map_offset
        self._tell = tell
        self._waiting: list[tuple[float, int, _Waiting]] = []
        self._waiting_bytes = 0
        self._number = count()
        self._arrived = trio.Event()
        self._budget = Budget(settings.questions_per_s)

    @property
    def waiting(self) -> int:
        """Questions that wait for their turn."""
        return len(self._waiting)

    def add(self, exchange: Exchange, second: bool = False) -> None:
        """Notes an exchange to be asked about; ``second``: of the primary as well. Left out when too many wait."""
        full = len(self._waiting) >= self._settings.waiting
        if full or self._waiting_bytes + exchange.size_bytes > self._settings.waiting_bytes:
            self.left_out["too many questions wait"] += 1
            return
        now_s = trio.current_time()
        self._put(_Waiting(exchange, second, now_s), now_s + self._settings.settle_ms / 1000)

    def _put(self, item: _Waiting, due_s: float) -> None:
        heappush(self._waiting, (due_s, next(self._number), item))
        self._waiting_bytes += item.exchange.size_bytes
        self._arrived.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Asks until cancelled."""
        free = trio.Semaphore(AT_A_TIME)
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                item = await self._next()
                await self._budget.spend(1)
                await free.acquire()
                nursery.start_soon(self._one, item, free)

    async def _next(self) -> _Waiting:
        while True:
            delay_s = self._waiting[0][0] - trio.current_time() if self._waiting else float("inf")
            if delay_s <= 0:
                item = heappop(self._waiting)[2]
                self._waiting_bytes -= item.exchange.size_bytes
                return item
            self._arrived = trio.Event()
            with trio.move_on_after(delay_s):
                await self._arrived.wait()

    async def _one(self, item: _Waiting, free: trio.Semaphore) -> None:
        try:
            await self._compare(item)
        except Unasked as reason:
            self.left_out[str(reason)] += 1
        except NOT_UNDERSTOOD:
            self.left_out["what was said is not understood"] += 1
        except (*ASKING_FAILED, LookupError):
            self.left_out["no answer"] += 1
        except Exception:
            # Whatever a target may say: the primary's clients must not notice.
            self.left_out["a fault of the gateway"] += 1
            log.exception("a question could not be compared", extra={"code": item.exchange.code})
        finally:
            free.release()

    async def _compare(self, item: _Waiting) -> None:
        asked = question(item.exchange, self.subscriptions, self._map_offset)
        started = trio.current_time()
        answer = asked.target_answer(await self._target(item.exchange.broker, asked.target))
        target_s = trio.current_time() - started
        primary = asked.primary_answer
        if item.second or item.tries:
            primary = await self._second_read(item, asked)
        found = [
            each
            for each in compare(item.exchange.code, primary, answer, self._terms)
            if each.path not in item.own and not self._noise.is_noise(each.code, each.path)
        ]
        if found and trio.current_time() - item.added_s < self._settings.lag_ms / 1000:
            item.tries += 1
            self._put(item, trio.current_time() + REPEAT_S)
        else:
            self._tell(Compared(item.exchange, found, target_s))

    async def _second_read(self, item: _Waiting, asked: Question) -> Command:
        """The primary's answer now; which fields differ from its first one is noted, and learned from the first try."""
        code = item.exchange.code
        again = await self._primary(item.exchange.broker, asked.again)
        item.own |= {each.path for each in compare(code, asked.primary_answer, again, SAME)}
        if item.second and not item.tries:
            self._noise.learn(code, item.own)
        return again
