"""Holds clients' answers until the target has the message too: the modes sync-best-effort and strict-dual.

The mirror passes an answer on (`hold_answer`) after it has offered the exchange to its stream, and the outcome or the
timeout releases it. The outcome may be known at once, when the stream has no room.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

import trio

from codec.command import encode_response
from codec.constants import ResponseCode
from gateway.shadow.mirror.settings import STRICT_DUAL, SYNC_BEST_EFFORT
from gateway.shadow.traffic.exchange import Exchange, ReleaseAnswer
from gateway.shadow.traffic.outcome import Outcome, OutcomeKind

SYNCHRONOUS_MODES: Final = (SYNC_BEST_EFFORT, STRICT_DUAL)
REFUSAL_PREFIX: Final = "[MIRROR] the primary did it, the target did not (strict-dual): "
"""Start of the remark of a refusal. A producer that sends again makes the primary store the message twice."""


@dataclass(slots=True)
class _HeldAnswer:
    exchange: Exchange
    release: ReleaseAnswer
    is_strict: bool
    due_s: float


class AnswerHolder:
    """Holds at most ``max_answers`` answers at a time, each for at most ``hold_s`` seconds."""

    def __init__(self, hold_s: float, max_answers: int) -> None:
        self._hold_s = hold_s
        self._max_answers = max_answers
        self._held: dict[Exchange, _HeldAnswer] = {}
        self._order: deque[_HeldAnswer] = deque()
        self._wake = trio.Event()
        self.held_total = 0
        self.timeouts_total = 0
        self.refusals_total = 0

    def hold_answer(
        self, exchange: Exchange, release: ReleaseAnswer, outcome: Outcome | None, *, is_strict: bool
    ) -> bool:
        """Hold an answer until the outcome is known; return False if it may pass now, and ``release`` is not used.

        ``outcome`` is None unless it is known already. ``is_strict``: a failure is answered in place of a success.
        """
        # Treated as if the time had passed: the client of a strict mode is refused, any other gets its answer.
        if outcome is None and len(self._held) >= self._max_answers:
            outcome = Outcome(exchange, OutcomeKind.DROPPED, "too many answers are held")
        # Nothing to wait for, and nothing to change about the answer.
        if outcome is not None and not (is_strict and _is_failure(outcome)):
            return False
        held = _HeldAnswer(exchange, release, is_strict, trio.current_time() + self._hold_s)
        self.held_total += 1
        if outcome is not None:
            self._release_answer(held, outcome)
            return True
        self._held[exchange] = held
        self._order.append(held)
        self._wake.set()
        return True

    def on_outcome(self, outcome: Outcome) -> None:
        """Release the answer of an exchange whose outcome is known."""
        held = self._held.pop(outcome.exchange, None)
        if held is not None:
            self._release_answer(held, outcome)

    def _release_answer(self, held: _HeldAnswer, outcome: Outcome) -> None:
        answer = held.exchange.answer
        assert answer is not None
        if held.is_strict and _is_failure(outcome):
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
                # All answers wait for the same time, so the oldest is due first. Those released before are skipped.
                held = self._order.popleft()
                if held.exchange in self._held:
                    await trio.sleep_until(held.due_s)
                    self._time_out(held)
        finally:
            # The mirror stops: no outcome will come any more.
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
