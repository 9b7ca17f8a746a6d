"""Counts of compared answers by request and field, with example differences and latencies.

One comparison is one mirrored request whose two answers were compared, or one read-only request sent to both clusters.
`diff_rate` is the share of comparisons in which at least one field differs that is neither an expected difference nor
noise. Memory is bounded: `MAX_CODES` request codes, `MAX_FIELDS` fields each, a fixed number of examples per field.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from gateway.runtime.metrics import Distribution, LatencyHistogram, Metric
from gateway.shadow.compare.answer_diff import Difference
from gateway.shadow.compare.expected_differences import request_name
from gateway.shadow.compare.noise import LearnedNoise
from gateway.shadow.compare.read_repeater import ReadComparison
from gateway.shadow.traffic.exchange import Exchange

MAX_CODES: Final = 500
"""Request codes with counts of their own; all further codes share one entry, code -1."""
MAX_FIELDS: Final = 200
"""Fields counted for each code; further fields are counted together as the field "other"."""
LATENCY_SIDES: Final = {
    "primary": "from forwarding the request to the primary's answer",
    "target": "from sending the request to the target to its answer",
    "gateway": "from a request's arrival until the gateway forwarded it",
}
QUANTILES: Final = (0.5, 0.99)

ComparisonListener = Callable[[str, bool], None]
"""Called for every comparison with the topic ("" when there is none) and whether anything differs."""


@dataclass(frozen=True, slots=True)
class DifferenceSample:
    """One example of a difference."""

    difference: Difference
    wall_ms: int
    broker: str
    topic: str

    def to_value(self) -> dict[str, Any]:
        """Return the sample as a JSON object."""
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
    """A reservoir sample: a bounded number of examples, each kept with the same probability."""

    def __init__(self, size: int, chance: Random) -> None:
        self.samples: list[DifferenceSample] = []
        self.added_count = 0
        self._size = size
        self._chance = chance

    def add_sample(self, sample: DifferenceSample) -> None:
        """Add a sample, replacing a random earlier one when the reservoir is full."""
        self.added_count += 1
        if len(self.samples) < self._size:
            self.samples.append(sample)
        elif (index := self._chance.randrange(self.added_count)) < self._size:
            self.samples[index] = sample


class _CodeCounts:
    """The counts of one request code."""

    def __init__(self) -> None:
        self.compared = 0
        self.differing = 0
        self.fields: dict[str, SampleReservoir] = {}
        self.latencies = {side: LatencyHistogram() for side in LATENCY_SIDES}


class ComparisonCounts:
    """Counts comparisons and latencies by request code, and calls listeners for every comparison.

    ``max_samples`` is the number of examples kept per field of a request; ``chance`` picks which ones stay.
    """

    def __init__(self, noise: LearnedNoise, max_samples: int, chance: Random) -> None:
        self.not_understood = 0
        self._noise = noise
        self._max_samples = max_samples
        self._chance = chance
        self._codes: dict[int, _CodeCounts] = {}
        self._listeners: list[ComparisonListener] = []

    def add_listener(self, listener: ComparisonListener) -> None:
        """Call a listener for every comparison from now on."""
        self._listeners.append(listener)

    # -- recording --------------------------------------------------------------------------------------------

    def record_latency(self, code: int, side: str, seconds: float) -> None:
        """Record how long one of `LATENCY_SIDES` took for a request with this code."""
        self._counts_of(code).latencies[side].record(seconds)

    def record_read(self, read: ReadComparison) -> None:
        """Count a repeated read and its differences."""
        self.record_latency(read.exchange.code, "target", read.target_s)
        self.record_comparison(read.exchange, read.differences)

    def record_comparison(self, exchange: Exchange, differences: list[Difference]) -> None:
        """Count one comparison and its differences; of several in one field the first becomes an example."""
        of_code = self._counts_of(exchange.code)
        of_code.compared += 1
        of_code.differing += bool(differences)
        topic = request_topic(exchange)
        for path, difference in {difference.path: difference for difference in reversed(differences)}.items():
            field = path if path in of_code.fields or len(of_code.fields) < MAX_FIELDS else "other"
            reservoir = of_code.fields.get(field)
            if reservoir is None:
                reservoir = of_code.fields[field] = SampleReservoir(self._max_samples, self._chance)
            reservoir.add_sample(DifferenceSample(difference, exchange.wall_ms, exchange.broker, topic))
        for listener in self._listeners:
            listener(topic, bool(differences))

    def _counts_of(self, code: int) -> _CodeCounts:
        counts = self._codes.get(code)
        if counts is None:
            counted_code = code if len(self._codes) < MAX_CODES else -1
            counts = self._codes.setdefault(counted_code, _CodeCounts())
        return counts

    # -- reporting --------------------------------------------------------------------------------------------

    @property
    def compared_count(self) -> int:
        """Comparisons so far."""
        return sum(counts.compared for counts in self._codes.values())

    @property
    def differing_count(self) -> int:
        """Comparisons in which something differed."""
        return sum(counts.differing for counts in self._codes.values())

    @property
    def diff_rate(self) -> float:
        """Share of comparisons that differ; 0 before the first comparison."""
        return self.differing_count / self.compared_count if self.compared_count else 0.0

    def status(self) -> dict[str, Any]:
        """Return all counts as a JSON object; request codes without a comparison are left out."""
        return {
            "compared": self.compared_count,
            "differing": self.differing_count,
            "diff_rate": self.diff_rate,
            "not_understood": self.not_understood,
            "requests": [
                {
                    "request": request_name(code),
                    "compared": counts.compared,
                    "differing": counts.differing,
                    "fields": {
                        path: reservoir.added_count for path, reservoir in sorted(counts.fields.items())
                    },
                    "latency_ms": _latency_quantiles(counts),
                }
                for code, counts in sorted(self._codes.items())
                if counts.compared
            ],
            "noise": [
                {"request": request_name(code), "field": path, "share": round(share, 4)}
                for code, path, share in self._noise.noisy_fields()
            ],
        }

    def samples(self, request: str = "", path: str = "") -> dict[str, Any]:
        """Return example differences as a JSON object, of one request and field or of all."""
        samples = [
            sample.to_value()
            for code, counts in sorted(self._codes.items())
            for field, reservoir in sorted(counts.fields.items())
            for sample in reservoir.samples
            if request in ("", request_name(code)) and path in ("", field)
        ]
        return {"samples": samples}

    def collect_metrics(self) -> Iterator[Metric | Distribution]:
        """Yield the metrics of all comparisons."""
        yield Metric("compare_diff_rate", self.diff_rate, "Share of comparisons that differ.", "gauge")
        noise = sum(1 for _ in self._noise.noisy_fields())
        yield Metric("compare_noise_fields", noise, "Fields learned to be noise.", "gauge")
        for code, counts in self._codes.items():
            labels = {"request": request_name(code)}
            yield Metric("compared_total", counts.compared, "Comparisons of two answers.", labels=labels)
            yield Metric(
                "compared_differing_total", counts.differing, "Comparisons that differ.", labels=labels
            )
            for path, reservoir in counts.fields.items():
                field = {**labels, "field": path}
                yield Metric(
                    "compared_fields_total", reservoir.added_count, "Differences by field.", labels=field
                )
            for side, latencies in counts.latencies.items():
                if latencies.count:
                    side_labels = {**labels, "of": side}
                    yield Distribution(
                        "compare_latency_seconds", latencies, "Latency of each side.", side_labels
                    )


def _latency_quantiles(of_code: _CodeCounts) -> dict[str, dict[str, float]]:
    return {
        side: {f"p{round(share * 100)}": round(latencies.quantile(share) * 1000, 3) for share in QUANTILES}
        for side, latencies in of_code.latencies.items()
        if latencies.count
    }


def request_topic(exchange: Exchange) -> str:
    """Return the topic a request names, "" when it names none."""
    ext = exchange.request_command.ext
    return ext.get("b", "") if exchange.code in (310, 320, 325) else ext.get("topic", "")
