"""Holds clients' answers until the target has the message too: the modes sync-best-effort and strict-dual.

The mirror announces which answer to hold (`expect_answer`), the hub offers the answer (`hold_answer`), and the outcome
or the timeout releases it. The outcome of an exchange may be known even before its answer is offered.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from codec.command import encode_response
from codec.constants import ResponseCode
from gateway.shadow.mirror.settings import STRICT_DUAL, SYNC_BEST_EFFORT
from gateway.shadow.traffic.exchange import Codes, Exchange
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind

SYNCHRONOUS_MODES: Final = (SYNC_BEST_EFFORT, STRICT_DUAL)
REFUSAL_PREFIX: Final = "[MIRROR] the primary did it, the target did not (strict-dual): "
"""Start of the remark of a refusal. A producer that sends again makes the primary store the message twice."""

ReleaseAnswer = Callable[[bytes], None]


@dataclass(slots=True)
class _HeldAnswer:
    exchange: Exchange
    release: ReleaseAnswer
    strict: bool
    due_s: float


class AnswerHolder:
    """A `Holder` of at most ``max_answers`` answers at a time, each for at most ``hold_s`` seconds."""

    def __init__(self, hold_s: float, max_answers: int) -> None:
        self._hold_s = hold_s
        self._max_answers = max_answers
        self._codes: Codes = frozenset()
        self._expected: tuple[Exchange, str] | None = None
        self._decided: Outcome | None = None
        """The outcome of the expected exchange, if it is known before the answer is offered."""
        self._held: dict[Exchange, _HeldAnswer] = {}
        self._order: deque[_HeldAnswer] = deque()
        self._wake = trio.Event()
        self.held_total = 0
        self.timeouts_total = 0
        self.refusals_total = 0

    def set_codes(self, codes: Codes) -> None:
        """Set the request codes whose answers may be held; none while no synchronous mode is in use."""
        self._codes = codes

    def codes(self) -> Codes:
        """Return the request codes whose answers may be held at the moment."""
        return self._codes

    def expect_answer(self, exchange: Exchange, mode: str) -> None:
        """Announce an exchange and its mode. `hold_answer` may be called with it next, or not at all."""
        self._expected, self._decided = (exchange, mode), None

    def hold_answer(self, exchange: Exchange, release: ReleaseAnswer) -> bool:
        """Hold the answer of the expected exchange if its mode is synchronous; return whether ``release`` is used."""
        expected, self._expected = self._expected, None
        if expected is None or expected[0] is not exchange or expected[1] not in SYNCHRONOUS_MODES:
            return False
        strict, decided = expected[1] == STRICT_DUAL, self._decided
        if decided is None and len(self._held) >= self._max_answers:
            decided = Outcome(exchange, OutcomeKind.DROPPED, "too many answers are held")
        if decided is not None and not (strict and _is_failure(decided)):
            return False
        held = _HeldAnswer(exchange, release, strict, trio.current_time() + self._hold_s)
        self.held_total += 1
        if decided is not None:
            self._release_answer(held, decided)
            return True
        self._held[exchange] = held
        self._order.append(held)
        self._wake.set()
        return True

    def on_outcome(self, outcome: Outcome) -> None:
        """Release the answer of an exchange whose outcome is known, or remember the outcome for `hold_answer`."""
        if self._expected is not None and self._expected[0] is outcome.exchange:
            self._decided = outcome
        held = self._held.pop(outcome.exchange, None)
        if held is not None:
            self._release_answer(held, outcome)

    def _release_answer(self, held: _HeldAnswer, outcome: Outcome) -> None:
        answer = held.exchange.answer
        assert answer is not None
        if held.strict and _is_failure(outcome):
            self.refusals_total += 1
            answer = encode_response(
                held.exchange.request_command.opaque,
                ResponseCode.SYSTEM_ERROR,
                None,
                b"",
                REFUSAL_PREFIX + outcome.reason,
            )
        held.release(answer)

    async def run(self) -> None:
        """Release overdue answers until cancelled, and then all remaining ones."""
        try:
            while True:
                if not self._order:
                    self._wake = trio.Event()
                    await self._wake.wait()
                held = self._order.popleft()
                if held.exchange in self._held:
                    await trio.sleep_until(held.due_s)
                    self._time_out(held)
        finally:
            for held in list(self._held.values()):
                self._time_out(held)

    def _time_out(self, held: _HeldAnswer) -> None:
        if self._held.pop(held.exchange, None) is not None:
            self.timeouts_total += 1
            self._release_answer(
                held, Outcome(held.exchange, OutcomeKind.DROPPED, f"no answer within {self._hold_s:g} s")
            )

    def __len__(self) -> int:
        return len(self._held)


def _is_failure(outcome: Outcome) -> bool:
    return outcome.kind in (OutcomeKind.REFUSED, OutcomeKind.DROPPED)
