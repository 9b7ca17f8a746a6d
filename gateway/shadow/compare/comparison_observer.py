"""Counts what differs between primary and target, by request and field, with samples; and how long each took.

Not responsible for how answers are compared (answers.py) nor for asking questions (pulls.py).

`diff_rate` is the share of comparisons in which at least one field differs that is neither masked nor noise. One
comparison is one mirrored request whose two answers were set side by side, or one read-only question asked of both.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from codec.errors import FrameError
from gateway.runtime.metrics import Distribution, Figure, Latencies
from gateway.shadow.compare.answer_diff import ComparisonTerms, Difference, diff_answers
from gateway.shadow.compare.expected_differences import SEND_CODES, request_name
from gateway.shadow.compare.noise import LearnedNoise
from gateway.shadow.compare.read_repeater import ReadComparison
from gateway.shadow.compare.repeatable_reads import READ_ONLY_CODES
from gateway.shadow.compare.settings import CompareSettings
from gateway.shadow.traffic.exchange import Codes, Exchange, Side
from gateway.shadow.traffic.outcome import Outcome
from remoting.requests.client import HeartBeat

MAX_CODES: Final = 500
MAX_FIELDS: Final = 200
"""Fields counted for each code; what is beyond is counted as the field "other"."""
TIMED_CODES: Final = frozenset((*SEND_CODES, 15, 36, 37))
"""Codes that are only timed here, besides those asked about."""
LATENCY_SIDES: Final = {
    "primary": "from passing a request on until the primary's answer",
    "target": "the same for the target",
    "gateway": "from a request's arrival until it was passed on",
}
QUANTILES: Final = (0.5, 0.99)

ComparisonListener = Callable[[str, bool], None]
"""Told of every comparison: the topic ("" when there is none) and whether anything differs."""


@dataclass(frozen=True, slots=True)
class DifferenceSample:
    """One example of a difference."""

    difference: Difference
    wall_ms: int
    broker: str
    topic: str

    def to_value(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "request": self.difference.request,
            "field": self.difference.path,
            "at": self.difference.at,
            "primary": self.difference.primary,
            "target": self.difference.target,
            "time_ms": self.wall_ms,
            "broker": self.broker,
            "topic": self.topic,
        }


class SampleReservoir:
    """A fair sample of bounded size of whatever many were added."""

    def __init__(self, size: int, chance: Random) -> None:
        self.samples: list[DifferenceSample] = []
        self.added_count = 0
        self._size = size
        self._chance = chance

    def add_sample(self, sample: DifferenceSample) -> None:
        """Every one added so far is kept with the same probability."""
        self.added_count += 1
        if len(self.samples) < self._size:
            self.samples.append(sample)
        elif (place := self._chance.randrange(self.added_count)) < self._size:
            self.samples[place] = sample


class _CodeCounts:
    """What was counted for one request code."""

    def __init__(self) -> None:
        self.compared = 0
        self.differing = 0
        self.fields: dict[str, SampleReservoir] = {}
        self.latencies = {who: Latencies() for who in LATENCY_SIDES}


class Comparer:
    """An `Observer` of traffic and, with `outcome`, an `OutcomeListener` of mirrors.

    ``ask`` gets exchanges to be asked about, and whether of the primary as well; ``heartbeat`` gets heartbeats.
    All chance comes from ``chance``.
    """

    def __init__(
        self,
        settings: CompareSettings,
        terms: ComparisonTerms,
        noise: LearnedNoise,
        chance: Random | None = None,
    ) -> None:
        self._settings = settings
        self._terms = terms
        self._noise = noise
        self._chance = chance or Random()
        self._codes: dict[int, _CodeCounts] = {}
        self._listeners: list[ComparisonListener] = []
        self._ask: Callable[[Exchange, bool], None] | None = None
        self._heartbeat: Callable[[Exchange], None] | None = None
        self.not_understood = 0

    def ask_with(self, ask: Callable[[Exchange, bool], None], heartbeat: Callable[[Exchange], None]) -> None:
        """Sets who asks questions, and who learns subscriptions."""
        self._ask, self._heartbeat = ask, heartbeat

    def add_listener(self, listener: ComparisonListener) -> None:
        """Adds one who is told of every comparison."""
        self._listeners.append(listener)

    # -- what passes ------------------------------------------------------------------------------------------

    def codes(self) -> Codes:
        """Those asked about, heartbeats, and those timed."""
        wanted = frozenset(READ_ONLY_CODES) | {HeartBeat.code}
        return wanted | TIMED_CODES if self._settings.latencies else wanted

    def observe(self, exchange: Exchange) -> None:
        """Times an exchange, and picks some to be asked about."""
        if exchange.reverse or exchange.answer is None:
            return
        code = exchange.code
        if code == HeartBeat.code:
            if self._heartbeat is not None:
                self._heartbeat(exchange)
            return
        if self._settings.latencies:
            self._record_latencies(exchange)
        wanted = self._ask is not None and exchange.side is Side.PRIMARY and code in READ_ONLY_CODES
        if wanted and self._chance.random() < self._settings.questions:
            assert self._ask is not None
            self._ask(exchange, self._chance.random() < self._settings.second_reads)

    def _record_latencies(self, exchange: Exchange) -> None:
        latencies = self._counts_of(exchange.code).latencies
        latencies["gateway"].record(exchange.forwarded_s - exchange.asked_s)
        latencies[exchange.side.value].record(exchange.answered_s - exchange.forwarded_s)

    # -- what was compared ------------------------------------------------------------------------------------

    def observe_outcome(self, outcome: Outcome) -> None:
        """Compares the answers to a mirrored request, a share of them."""
        exchange = outcome.exchange
        if outcome.answer is None or exchange.answer is None:
            return
        self._counts_of(exchange.code).latencies["target"].record(outcome.latency_s)
        if self._chance.random() >= self._settings.answers:
            return
        try:
            answered = exchange.answer_command
        except FrameError:
            self.not_understood += 1
            return
        assert answered is not None
        sides = (answered, outcome.answer)
        primary, target = sides if exchange.side is Side.PRIMARY else sides[::-1]
        found = diff_answers(exchange.code, primary, target, self._terms)
        self._record_comparison(
            exchange, [each for each in found if not self._noise.is_noise(each.code, each.path)]
        )

    def record_read(self, compared: ReadComparison) -> None:
        """Counts what a question found."""
        self._counts_of(compared.exchange.code).latencies["target"].record(compared.target_s)
        self._record_comparison(compared.exchange, compared.differences)

    def _record_comparison(self, exchange: Exchange, differences: list[Difference]) -> None:
        of_code = self._counts_of(exchange.code)
        of_code.compared += 1
        of_code.differing += bool(differences)
        topic = request_topic(exchange)
        for path, difference in {each.path: each for each in reversed(differences)}.items():
            place = path if path in of_code.fields or len(of_code.fields) < MAX_FIELDS else "other"
            kept = of_code.fields.get(place)
            if kept is None:
                kept = of_code.fields[place] = SampleReservoir(self._settings.samples, self._chance)
            kept.add_sample(DifferenceSample(difference, exchange.wall_ms, exchange.broker, topic))
        for listener in self._listeners:
            listener(topic, bool(differences))

    def _counts_of(self, code: int) -> _CodeCounts:
        known = self._codes.get(code)
        if known is None:
            place = code if len(self._codes) < MAX_CODES else -1
            known = self._codes.setdefault(place, _CodeCounts())
        return known

    # -- what is shown ----------------------------------------------------------------------------------------

    @property
    def compared_count(self) -> int:
        """Comparisons so far."""
        return sum(each.compared for each in self._codes.values())

    @property
    def differing_count(self) -> int:
        """Comparisons in which something differed."""
        return sum(each.differing for each in self._codes.values())

    @property
    def diff_rate(self) -> float:
        """See the module; 0 before anything was compared."""
        return self.differing_count / self.compared_count if self.compared_count else 0.0

    def status(self) -> dict[str, Any]:
        """All counts, as JSON; only codes of which something was compared."""
        return {
            "compared": self.compared_count,
            "differing": self.differing_count,
            "diff_rate": self.diff_rate,
            "not_understood": self.not_understood,
            "requests": [
                {
                    "request": request_name(code),
                    "compared": each.compared,
                    "differing": each.differing,
                    "fields": {path: kept.added_count for path, kept in sorted(each.fields.items())},
                    "latency_ms": _latency_quantiles(each),
                }
                for code, each in sorted(self._codes.items())
                if each.compared
            ],
            "noise": [
                {"request": request_name(code), "field": path, "share": round(share, 4)}
                for code, path, share in self._noise.noisy_fields()
            ],
        }

    def samples(self, request: str = "", path: str = "") -> dict[str, Any]:
        """Examples of what differs, as JSON: of one request and field, or of all."""
        found = [
            sample.to_value()
            for code, each in sorted(self._codes.items())
            for place, kept in sorted(each.fields.items())
            for sample in kept.samples
            if request in ("", request_name(code)) and path in ("", place)
        ]
        return {"samples": found}

    def figures(self) -> Iterator[Figure | Distribution]:
        """What a `figures.Source` gives."""
        yield Figure("compare_diff_rate", self.diff_rate, "Share of comparisons that differ.", "gauge")
        noise = sum(1 for _ in self._noise.noisy_fields())
        yield Figure("compare_noise_fields", noise, "Fields learned to be noise.", "gauge")
        for code, each in self._codes.items():
            labels = {"request": request_name(code)}
            yield Figure("compared_total", each.compared, "Comparisons of two answers.", labels=labels)
            yield Figure("compared_differing_total", each.differing, "Those that differ.", labels=labels)
            for path, kept in each.fields.items():
                field = {**labels, "field": path}
                yield Figure("compared_fields_total", kept.added_count, "Differences by field.", labels=field)
            for who, latencies in each.latencies.items():
                if latencies.count:
                    whose = {**labels, "of": who}
                    yield Distribution(
                        "compare_latency_seconds", latencies, "How long each side took.", whose
                    )


def _latency_quantiles(of_code: _CodeCounts) -> dict[str, dict[str, float]]:
    return {
        who: {f"p{round(share * 100)}": round(latencies.quantile(share) * 1000, 3) for share in QUANTILES}
        for who, latencies in of_code.latencies.items()
        if latencies.count
    }


def request_topic(exchange: Exchange) -> str:
    """The topic a request names, "" when it names none."""
    ext = exchange.request_command.ext
    return ext.get("b", "") if exchange.code in (310, 320, 325) else ext.get("topic", "")
