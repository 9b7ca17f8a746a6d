"""The observer that compares the traffic passing through the gateway.

For each exchange it records latencies and picks a share of read-only requests to be repeated at the target
(`read_repeater.py`). For each mirrored request it compares the two answers (`answer_diff.py`). Results go to
`comparison_counts.py`.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from codec.errors import FrameError
from gateway.shadow.compare.answer_diff import ComparisonTerms, diff_answers
from gateway.shadow.compare.comparison_counts import ComparisonCounts
from gateway.shadow.compare.expected_differences import SEND_CODES
from gateway.shadow.compare.noise import LearnedNoise
from gateway.shadow.compare.repeatable_reads import READ_ONLY_CODES
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.traffic.exchange import Codes, Exchange, Side
from gateway.shadow.traffic.outcome import Outcome
from remoting.requests.client import HeartBeat

MAX_BODY_BYTES: Final = 32 * 1024
"""Larger answers to mirrored requests are compared as a whole: they have no such bodies, unless a target is hostile."""
TIMED_CODES: Final = frozenset((*SEND_CODES, 15, 36, 37))
"""Codes whose latency is recorded although they are not read-only: sends, commits, send-backs, ends of transactions."""


class ComparisonObserver:
    """An `Observer` of traffic whose `observe_outcome` is an `OutcomeListener` of mirrors.

    ``repeat_read`` gets exchanges to be repeated at the target, and whether to repeat them at the primary as well;
    ``learn_heartbeat`` gets heartbeats. All random choices come from ``chance``.
    """

    def __init__(
        self,
        settings: CompareSettings,
        terms: ComparisonTerms,
        noise: LearnedNoise,
        counts: ComparisonCounts,
        *,
        repeat_read: Callable[[Exchange, bool], None],
        learn_heartbeat: Callable[[Exchange], None],
        chance: Random,
    ) -> None:
        self._settings = settings
        self._terms = terms
        self._noise = noise
        self._counts = counts
        self._repeat_read = repeat_read
        self._learn_heartbeat = learn_heartbeat
        self._chance = chance

    def codes(self) -> Codes:
        """Return the codes of read-only requests, heartbeats, and requests whose latency is recorded."""
        codes = frozenset(READ_ONLY_CODES) | {HeartBeat.code}
        return codes | TIMED_CODES if self._settings.latencies else codes

    def observe(self, exchange: Exchange) -> None:
        """Record the latency of an exchange, and pick some read-only ones to be repeated."""
        if exchange.reverse or exchange.answer is None:
            return
        code = exchange.code
        if code == HeartBeat.code:
            self._learn_heartbeat(exchange)
            return
        if self._settings.latencies:
            self._record_latencies(exchange)
        repeatable = exchange.side is Side.PRIMARY and code in READ_ONLY_CODES
        if repeatable and self._chance.random() < self._settings.repeated_reads:
            self._repeat_read(exchange, self._chance.random() < self._settings.second_reads)

    def _record_latencies(self, exchange: Exchange) -> None:
        record = self._counts.record_latency
        record(exchange.code, "gateway", exchange.forwarded_s - exchange.asked_s)
        record(exchange.code, exchange.side.value, exchange.answered_s - exchange.forwarded_s)

    def observe_outcome(self, outcome: Outcome) -> None:
        """Compare the two answers to a mirrored request, for the configured share of requests."""
        exchange = outcome.exchange
        if outcome.answer is None or exchange.answer is None:
            return
        self._counts.record_latency(exchange.code, "target", outcome.latency_s)
        if self._chance.random() >= self._settings.answers:
            return
        try:
            answer = exchange.answer_command
        except FrameError:
            self._counts.not_understood += 1
            return
        assert answer is not None
        sides = (answer, outcome.answer)
        primary, target = sides if exchange.side is Side.PRIMARY else sides[::-1]
        all_differences = diff_answers(exchange.code, primary, target, self._terms, MAX_BODY_BYTES)
        differences = [
            difference
            for difference in all_differences
            if not self._noise.is_noise(difference.code, difference.path)
        ]
        self._counts.record_comparison(exchange, differences)
