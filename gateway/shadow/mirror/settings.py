"""Settings of mirroring: the tables `[[mirror]]` (rules, the first that matches wins) and `[mirroring]` (limits).

Not responsible for matching (rules is) nor for what a mode does (mirrors and holding are).
"""

from dataclasses import dataclass
from typing import Final

from toolkit.settings import SettingsError, setting

OFF: Final = "off"
ASYNC: Final = "async"
SYNC_BEST_EFFORT: Final = "sync-best-effort"
STRICT_DUAL: Final = "strict-dual"
TARGET_PRIMARY: Final = "target-primary"
MODES: Final = (OFF, ASYNC, SYNC_BEST_EFFORT, STRICT_DUAL, TARGET_PRIMARY)

_MATCH_ALL: Final = ("*",)


def _match_all() -> list[str]:
    return list(_MATCH_ALL)


@dataclass(frozen=True, slots=True)
class MirrorRule:
    """Which exchanges one mirror takes, and how. Patterns are those of a shell: `*`, `?`, `[ab]`.

    A request that names no topic (a group's settings) matches only rules that take every topic; the same goes for
    groups and clients. Rules that share a topic's queue among several (by `clients` or `codes`) give up the order
    between what the one and the other takes.
    """

    topics: list[str] = setting(_match_all, "Patterns of topics.")
    groups: list[str] = setting(_match_all, "Patterns of consumer or producer groups.")
    codes: list[str] = setting(
        list, "Names of request codes, such as SEND_MESSAGE_V2; empty for all that can be mirrored."
    )
    clients: list[str] = setting(
        _match_all, "Patterns of clients' addresses, such as 10.1.*; the port is left off."
    )
    sample: float = setting(
        1.0, "Share of what matches that is mirrored, by a stable hash.", low=0.0, high=1.0
    )
    sample_by: str = setting(
        "queue",
        "What is hashed: the topic and queue (all of a queue or nothing, so that order and offsets stay whole) or "
        "the topic and sharding key, message key or unique key (all of a key or nothing: order of keys holds, "
        "offsets of the queues mean nothing for the target).",
        choices=("queue", "key"),
    )
    mode: str = setting(
        ASYNC,
        "off: nothing; async: the client's answer never waits; sync-best-effort: it waits for the target, at most "
        "`hold_ms`; strict-dual: success is answered only when both have it; target-primary: requests answered by "
        "the target go back to the primary.",
        choices=MODES,
    )
    oneway: str = setting(
        "skip",
        "Sends without answer, of which nobody knows whether and where the primary stored them. skip: left out, "
        "and the queue counts as diverged; send: the content goes to the target, in any order, without offsets.",
        choices=("skip", "send"),
    )


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """Limits of all mirrors. Each stream is the work of one rule for one broker of the source."""

    queue_messages: int = setting(
        50_000, "Exchanges that wait in memory, per stream.", low=1, high=10_000_000
    )
    queue_bytes: int = setting(128 * 1024 * 1024, "Their size in bytes, per stream.", low=1024, high=1 << 36)
    batch_messages: int = setting(
        256, "Exchanges a stream hands to its target in one go.", low=1, high=10_000
    )
    deadline_ms: int = setting(
        5_000,
        "How long the target may take over one go before that counts as a failure.",
        low=10,
        high=600_000,
    )
    hold_ms: int = setting(
        1_000,
        "How long sync-best-effort and strict-dual hold a client's answer; less than the client's own timeout.",
        low=1,
        high=60_000,
    )
    held_answers: int = setting(
        10_000,
        "Answers held at a time; beyond that they are treated as if `hold_ms` were over.",
        low=1,
        high=1_000_000,
    )
    order_ms: int = setting(
        50,
        "How long an answer with a later queue offset waits for those before it: answers of different clients "
        "arrive in another order than the primary stored the messages.",
        low=0,
        high=10_000,
    )
    order_messages: int = setting(
        1_000, "How many wait for that, per queue; then they go on in their order.", low=1, high=1_000_000
    )
    breaker_failures: int = setting(
        3, "Failures in a row after which a target is left alone for a while.", low=1, high=1_000
    )
    breaker_backoff_ms: int = setting(
        200, "How long at first; twice as long after every further failure.", low=1, high=600_000
    )
    breaker_backoff_max_ms: int = setting(10_000, "How long at most.", low=1, high=3_600_000)
    breaker_forbidden: int = setting(
        32,
        "Answers NO_PERMISSION in a row, and none of another kind between them, after which it is left alone as well.",
        low=1,
        high=1_000_000,
    )
    attempts: int = setting(
        5,
        "Failures of one exchange alone, while the target answers other questions, after which it is dropped.",
        low=1,
        high=1_000,
    )
    refusals: int = setting(
        3,
        "Times an exchange is tried that the target refuses for the moment (busy, no disk space, slave missing); "
        "while it does so the breaker is open in between.",
        low=1,
        high=1_000_000,
    )
    spill: str = setting(
        "none",
        "Where goes what waits. none: memory; what it has no room for is dropped and counted, the queue is diverged; "
        "disk: from the target's first failure on, or when memory is half full, into files as well, and from there to "
        "the target in order, by the next run if this one ends.",
        choices=("none", "disk"),
    )
    spill_dir: str = setting("", "Directory of these files, one below it per stream; one gateway's alone.")
    spill_bytes: int = setting(
        4 * 1024 * 1024 * 1024,
        "Size of these files, per stream; beyond that is dropped.",
        low=4096,
        high=1 << 44,
    )
    spill_file_bytes: int = setting(
        64 * 1024 * 1024,
        "Size of one such file; it is deleted when the fate of all in it is known.",
        low=4096,
        high=1 << 32,
    )
    state_file: str = setting(
        "",
        "File of offset map and half messages, written every `state_interval_ms`; empty keeps them in memory only.",
    )
    state_interval_ms: int = setting(5_000, "How often that file is written.", low=100, high=3_600_000)
    offset_runs: int = setting(
        256,
        "Stretches of equal distance between offsets of primary and target that are remembered per queue; the "
        "oldest are forgotten, which makes translated offsets earlier, never later.",
        low=1,
        high=1_000_000,
    )
    half_messages: int = setting(
        100_000,
        "Half messages whose end is remembered, per broker; the oldest are forgotten.",
        low=1,
        high=10_000_000,
    )
    drain_ms: int = setting(
        5_000,
        "How long the gateway waits at its end for what is still queued; the rest is not mirrored.",
        low=0,
        high=3_600_000,
    )
    diverged_marks: int = setting(
        10_000,
        "Queues remembered as diverged; beyond that they are counted together.",
        low=1,
        high=10_000_000,
    )

    def __post_init__(self) -> None:
        if self.spill == "disk" and not self.spill_dir:
            raise SettingsError('[mirroring] spill = "disk" needs spill_dir')
        if self.breaker_backoff_max_ms < self.breaker_backoff_ms:
            raise SettingsError("[mirroring] breaker_backoff_max_ms is less than breaker_backoff_ms")
