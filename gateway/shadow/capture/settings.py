"""Settings of the traffic capture: table `[capture]` with `[[capture.rules]]` and `[[capture.redact]]`."""

from dataclasses import dataclass

from toolkit.settings import SettingsError, setting

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CaptureRule:
    """A rule that selects exchanges to capture. The first matching rule counts; without a match nothing is captured."""

    topics: list[str] = setting(
        lambda: ["*"], "Patterns (* and ?) of topics; requests without a topic match only *."
    )
    groups: list[str] = setting(
        lambda: ["*"], "Patterns of producer and consumer groups; requests without a group match only *."
    )
    codes: list[int] = setting(list, "Request codes; empty: all.")
    sample: float = setting(
        1.0, "Share of matching exchanges that is captured; 0 excludes them.", low=0.0, high=1.0
    )
    sample_by: str = setting(
        "connection",
        "Unit that is captured completely or not at all: a client's connection, or a queue of a topic.",
        choices=("connection", "queue"),
    )
    answers: str = setting(
        "whole",
        "Part of an answer that is written: all of it, all but its body, or nothing.",
        choices=("whole", "head", "none"),
    )


@dataclass(frozen=True, slots=True)
class RedactionRule:
    """A rule that removes parts of messages before they are written. The first rule whose topics match counts."""

    topics: list[str] = setting(
        lambda: ["*"], "Patterns (* and ?) of topics; a retried message matches by its original topic."
    )
    body: str = setting(
        "keep",
        "Treatment of a message's body; hash replaces it by the 64 hexadecimal digits of its SHA-256.",
        choices=("keep", "drop", "hash", "truncate"),
    )
    truncate_bytes: int = setting(256, "Bytes that truncate keeps.", low=0, high=MIB)
    hash_key: str = setting(
        "", "Key that turns the hash into an HMAC, so that bodies cannot be guessed from it.", secret=True
    )
    properties: list[str] = setting(list, "Patterns of property names to remove.")


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Traffic written to files. Credentials (access keys, signatures, tokens, users' passwords) are never written."""

    directory: str = setting(
        "", "Folder of the capture files, not shared with another gateway; empty: nothing is captured."
    )
    buffer_messages: int = setting(
        100_000,
        "Maximum number of exchanges buffered in memory; further ones are dropped and counted.",
        low=1,
        high=10_000_000,
    )
    buffer_bytes: int = setting(
        64 * MIB,
        "Maximum size of the buffered exchanges, in bytes of their frames.",
        low=64 * 1024,
        high=16 * 1024 * MIB,
    )
    block_bytes: int = setting(
        256 * 1024, "Buffered size at which a block is written, in bytes.", low=4096, high=64 * MIB
    )
    block_interval_ms: int = setting(
        1000,
        "Longest time until a block is written, in milliseconds; SIGKILL loses at most this much traffic.",
        low=10,
        high=60_000,
    )
    compression_level: int = setting(1, "zlib level of blocks; 0: not compressed.", low=0, high=9)
    file_bytes: int = setting(
        256 * MIB,
        "Maximum size of a file, in bytes; a new file is started before it is exceeded.",
        low=64 * 1024,
    )
    file_age_s: int = setting(3600, "Maximum age of an open file, in seconds.", low=1, high=30 * 86_400)
    max_files: int = setting(0, "Maximum number of files; the oldest are deleted. 0: no limit.", low=0)
    max_total_bytes: int = setting(
        4096 * MIB,
        "Maximum size of all files in bytes, counting the open one as full; the oldest are deleted. 0: no limit.",
        low=0,
    )
    reserve_bytes: int = setting(
        256 * MIB, "Disk space left free, in bytes; with less, nothing is written.", low=0
    )
    fsync: str = setting(
        "close",
        "When data is flushed to disk to survive a power failure; written data survives SIGKILL in any case.",
        choices=("never", "close", "block"),
    )
    target_wait_ms: int = setting(
        2000,
        "Longest time an exchange waits for the answer of the mirror's target, in milliseconds; 0: not at all.",
        low=0,
        high=60_000,
    )
    rules: list[CaptureRule] = setting(list, "Rules that select what is captured; without rules, everything.")
    redact: list[RedactionRule] = setting(
        list, "Rules that remove parts of messages; without rules, only credentials are removed."
    )

    def __post_init__(self) -> None:
        if 0 < self.max_total_bytes < self.file_bytes:
            raise SettingsError("[capture] max_total_bytes must not be less than file_bytes")
        if self.buffer_bytes < self.block_bytes:
            raise SettingsError("[capture] buffer_bytes must not be less than block_bytes")
