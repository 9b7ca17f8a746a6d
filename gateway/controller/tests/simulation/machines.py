"""Machines on virtual time: their clocks, their pauses, and the network between them."""

import random
from typing import Final

import trio

MAX_DELAYS_S: Final = (0.002, 0.02, 0.15)
MAX_CLOCK_ERROR: Final = 0.01
"""Greatest error of the rate of a machine's clock."""


class MachineClock:
    """The clocks of a machine. The monotonic one stands still while the machine is suspended, as Linux has it."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._lost_s = 0.0
        self._frozen_at_s = 0.0
        self._frozen_until_s = 0.0
        self.wall_offset_ms = 0

    def freeze(self, duration_s: float) -> None:
        """Let the monotonic clock stand still for a time."""
        self._count_freeze()
        self._frozen_at_s = trio.current_time()
        self._frozen_until_s = self._frozen_at_s + duration_s

    def _count_freeze(self) -> None:
        if self._frozen_until_s:
            self._lost_s += min(self._frozen_until_s, trio.current_time()) - self._frozen_at_s
            self._frozen_until_s = 0.0

    def monotonic(self) -> float:
        now_s = trio.current_time()
        if now_s < self._frozen_until_s:
            now_s = self._frozen_at_s
        else:
            self._count_freeze()
        return self._rate * (now_s - self._lost_s)

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(trio.current_time() * 1000) + self.wall_offset_ms


class Network:
    """The ways between machines, which are named by the text before the colon of their addresses.

    A message waits while its way is cut, as TCP sends it again and again, and while one of the two machines is paused.
    """

    def __init__(self, randomness: random.Random) -> None:
        self.randomness = randomness
        self._max_delay_s = randomness.choice(MAX_DELAYS_S)
        self._cuts: dict[tuple[str, str], int] = {}
        self._paused_until_s: dict[str, float] = {}
        self._changed = trio.Event()

    def new_clock(self) -> MachineClock:
        return MachineClock(1 + self.randomness.uniform(-MAX_CLOCK_ERROR, MAX_CLOCK_ERROR))

    def cut(self, source: str, target: str) -> None:
        """Cut one direction; each cut has to be healed."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, source: str, target: str) -> None:
        cuts = self._cuts.get((source, target), 0) - 1
        if cuts > 0:
            self._cuts[source, target] = cuts
        else:
            self._cuts.pop((source, target), None)
        self._wake()

    def heal_all(self) -> None:
        self._cuts.clear()
        self._paused_until_s.clear()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def pause(self, machine: str, duration_s: float) -> None:
        """Let nothing in or out of a machine for a time."""
        self._paused_until_s[machine] = trio.current_time() + duration_s

    def is_paused(self, machine: str) -> bool:
        return trio.current_time() < self._paused_until_s.get(machine, 0.0)

    async def wait_running(self, machine: str) -> None:
        """Return when a machine is not paused."""
        while self.is_paused(machine):
            await trio.sleep_until(self._paused_until_s[machine])

    async def deliver(self, source: str, target: str) -> None:
        """Take the time that a message takes on its way."""
        await self.wait_running(source)
        await trio.sleep(self.randomness.random() * self._max_delay_s)
        while True:
            if self.is_cut(source, target):
                await self._changed.wait()
            elif self.is_paused(target):
                await self.wait_running(target)
            else:
                return
