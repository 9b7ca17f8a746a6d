"""Learned noise: fields that differ between two reads of the primary itself and so say nothing about the target.

Counts second reads and differences by request code and field. `read_repeater.py` makes the reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from codec.java_numbers import I32, parse_java_integer

MAX_FIELDS: Final = 200
"""Fields counted for each code; further ones never become noise."""


class LearnedNoise:
    """Decides which fields are noise.

    A field of a code is noise once ``reads`` second reads were made and ``share`` of them differed in it. After every
    ``memory`` reads of a code all its counts are halved, so that a field that has become steady is compared again.
    """

    def __init__(self, reads: int, share: float, memory: int) -> None:
        self._min_reads = reads
        self._min_share = share
        self._halving_reads = memory
        self._read_counts: dict[int, float] = {}
        self._difference_counts: dict[int, dict[str, float]] = {}
        self._reads_since_halving: dict[int, int] = {}

    def record_second_read(self, code: int, differing: Iterable[str]) -> None:
        """Record a second read of a request with this code and the fields in which it differed from the first read."""
        self._read_counts[code] = self._read_counts.get(code, 0) + 1
        counts = self._difference_counts.setdefault(code, {})
        for path in set(differing):
            if path in counts or len(counts) < MAX_FIELDS:
                counts[path] = counts.get(path, 0) + 1
        self._reads_since_halving[code] = self._reads_since_halving.get(code, 0) + 1
        if self._reads_since_halving[code] >= self._halving_reads:
            self._halve_counts(code)

    def is_noise(self, code: int, path: str) -> bool:
        """Return whether differences in this field are to be ignored."""
        reads = self._read_counts.get(code, 0)
        if reads < self._min_reads:
            return False
        return self._difference_counts[code].get(path, 0) >= max(1, self._min_share * reads)

    def noisy_fields(self) -> Iterator[tuple[int, str, float]]:
        """Yield each field that is noise now: code, field, share of the reads that differed in it."""
        for code, counts in self._difference_counts.items():
            for path, count in counts.items():
                if self.is_noise(code, path):
                    yield code, path, count / self._read_counts[code]

    def _halve_counts(self, code: int) -> None:
        self._reads_since_halving[code] = 0
        self._read_counts[code] /= 2
        counts = self._difference_counts[code]
        for path in list(counts):
            counts[path] /= 2
            if counts[path] < 0.5:
                del counts[path]

    def to_value(self) -> dict[str, Any]:
        """Return the learned counts as a JSON object."""
        return {
            str(code): {"reads": self._read_counts[code], "differed": dict(counts)}
            for code, counts in self._difference_counts.items()
        }

    def restore(self, value: Mapping[str, Any]) -> None:
        """Continue from the counts of an earlier run, as `to_value` returned them.

        Raises ValueError for anything else.
        """
        try:
            learned = {
                parse_java_integer(code, I32): (float(counts["reads"]), counts["differed"])
                for code, counts in value.items()
            }
            differed = {
                code: {str(path): float(count) for path, count in list(counts.items())[:MAX_FIELDS]}
                for code, (_, counts) in learned.items()
            }
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a table of learned noise: {error!r}") from error
        self._read_counts = {code: reads for code, (reads, _) in learned.items()}
        self._difference_counts = differed
        self._reads_since_halving = {}
