"""Settings of mirroring: the tables `[[mirror]]` (rules; the first that matches applies) and `[mirroring]` (limits)."""

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
    """One rule: the exchanges that it mirrors, and how. Patterns are shell patterns: `*`, `?`, `[ab]`.

    A request that names no topic (a group's settings) matches only rules for every topic; the same goes for groups and
    clients. If several rules divide the messages of one queue (by `clients` or `codes`), the order between their
    messages is not kept.
    """

    topics: list[str] = setting(_match_all, "Patterns of topic names.")
    groups: list[str] = setting(_match_all, "Patterns of consumer or producer groups.")
    codes: list[str] = setting(
        list, "Names of request codes, such as SEND_MESSAGE_V2; empty means all that can be mirrored."
    )
    clients: list[str] = setting(_match_all, "Patterns of client addresses without port, such as 10.1.*.")
    sample: float = setting(
        1.0, "Share of the matching exchanges that is mirrored, chosen by a stable hash.", low=0.0, high=1.0
    )
    sample_by: str = setting(
        "queue",
        "What the sample's hash covers. queue: topic and queue, so that a queue is mirrored completely or not at all; "
        "key: topic and sharding key, message key or unique key, so that a key is mirrored completely or not at all. "
        "With key, the order within a key holds, but queue offsets cannot be translated.",
        choices=("queue", "key"),
    )
    mode: str = setting(
        ASYNC,
        "off: nothing is mirrored; async: the client's answer never waits; sync-best-effort: it waits for the target, "
        "at most `hold_ms`; strict-dual: success is answered only when both clusters have the message; "
        "target-primary: requests go to the target first, and what it answers is mirrored back to the primary.",
        choices=MODES,
    )
    oneway: str = setting(
        "skip",
        "Handling of oneway sends, whose place at the primary is unknown. skip: they are left out, and the queue is "
        "marked as diverged; send: they are sent to the target too, in any order and without offsets.",
        choices=("skip", "send"),
    )


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """Limits of all mirror streams. There is one stream per rule and broker."""

    queue_messages: int = setting(
        50_000, "Maximum number of exchanges waiting in memory, per stream.", low=1, high=10_000_000
    )
    queue_bytes: int = setting(
        128 * 1024 * 1024,
        "Maximum memory of the waiting exchanges in bytes, per stream: their frames and about 1.2 kB each.",
        low=1024,
        high=1 << 36,
    )
    batch_messages: int = setting(
        256, "Maximum number of exchanges per batch to the target.", low=1, high=10_000
    )
    deadline_ms: int = setting(
        5_000,
        "How long the target may take for one batch before it counts as failed.",
        low=10,
        high=600_000,
    )
    hold_ms: int = setting(
        1_000,
        "How long sync-best-effort and strict-dual hold a client's answer; should be less than the client's timeout.",
        low=1,
        high=60_000,
    )
    held_answers: int = setting(
        10_000,
        "Maximum number of held answers; beyond it, answers are treated as if `hold_ms` had passed.",
        low=1,
        high=1_000_000,
    )
    order_ms: int = setting(
        50,
        "How long a message waits for messages with earlier queue offsets: answers of different clients can arrive "
        "in another order than the primary stored the messages.",
        low=0,
        high=10_000,
    )
    order_messages: int = setting(
        1_000,
        "Maximum number of messages waiting for earlier offsets, per queue; beyond it, the first ones wait no longer.",
        low=1,
        high=1_000_000,
    )
    breaker_failures: int = setting(
        3,
        "Failures in a row after which the circuit breaker opens, and the target is left alone for a while.",
        low=1,
        high=1_000,
    )
    breaker_backoff_ms: int = setting(
        200,
        "First back-off of the circuit breaker; it doubles with each further failure.",
        low=1,
        high=600_000,
    )
    breaker_backoff_max_ms: int = setting(
        10_000, "Maximum back-off of the circuit breaker.", low=1, high=3_600_000
    )
    breaker_forbidden: int = setting(
        32,
        "NO_PERMISSION answers in a row, with no other answer between them, after which the breaker opens too.",
        low=1,
        high=1_000_000,
    )
    attempts: int = setting(
        5,
        "Failures of a single exchange, while the target answers probes, after which the exchange is dropped.",
        low=1,
        high=1_000,
    )
    refusals: int = setting(
        3,
        "Attempts at an exchange that the target refuses temporarily (busy, no disk space, slave missing); "
        "the breaker opens between them.",
        low=1,
        high=1_000_000,
    )
    spill: str = setting(
        "none",
        "Where to buffer exchanges waiting for the target. none: memory only; when it is full, new messages are "
        "dropped and counted, and their queue is marked as diverged. disk: from the target's first failure on, or "
        "when memory is half full, in files too; if the gateway ends, the next run sends them, in order.",
        choices=("none", "disk"),
    )
    spill_dir: str = setting(
        "", "Directory of the spill files, with a subdirectory per stream. Gateways must not share it."
    )
    spill_bytes: int = setting(
        4 * 1024 * 1024 * 1024,
        "Maximum size of the spill files in bytes, per stream; beyond it, messages are dropped.",
        low=4096,
        high=1 << 44,
    )
    spill_file_bytes: int = setting(
        64 * 1024 * 1024,
        "Size of one spill file in bytes. A file is deleted when the outcome of everything in it is known.",
        low=4096,
        high=1 << 32,
    )
    state_file: str = setting(
        "",
        "File for the offset map and half messages, written every `state_interval_ms`; empty: memory only.",
    )
    state_interval_ms: int = setting(
        5_000, "Interval at which the state file is written.", low=100, high=3_600_000
    )
    offset_runs: int = setting(
        256,
        "Maximum number of remembered offset ranges per queue, each with a fixed distance between primary and "
        "target. The oldest are forgotten, which can make translated offsets earlier, but never later.",
        low=1,
        high=1_000_000,
    )
    half_messages: int = setting(
        100_000,
        "Maximum number of remembered half messages, per direction of mirroring; the oldest are forgotten.",
        low=1,
        high=10_000_000,
    )
    drain_ms: int = setting(
        5_000,
        "How long the gateway waits at shutdown for queued exchanges; the rest is not mirrored.",
        low=0,
        high=3_600_000,
    )
    diverged_marks: int = setting(
        10_000,
        "Maximum number of queues listed as diverged; messages of further ones are only counted.",
        low=1,
        high=10_000_000,
    )

    def __post_init__(self) -> None:
        if self.spill == "disk" and not self.spill_dir:
            raise SettingsError('[mirroring] spill = "disk" needs spill_dir')
        if self.breaker_backoff_max_ms < self.breaker_backoff_ms:
            raise SettingsError("[mirroring] breaker_backoff_max_ms is less than breaker_backoff_ms")
