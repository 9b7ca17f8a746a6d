"""Settings of the capture: table `[capture]` with `[[capture.rules]]` and `[[capture.redact]]`."""

from dataclasses import dataclass

from gateway.shadow.settings import SettingsError, setting

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CaptureRule:
    """What is captured. Of several rules the first that fits an exchange counts; what none fits is left out."""

    topics: list[str] = setting(
        lambda: ["*"], "Patterns (* and ?) of topics; only * fits what is about no topic."
    )
    groups: list[str] = setting(
        lambda: ["*"], "Patterns of producer and consumer groups; only * fits what is about none."
    )
    codes: list[int] = setting(list, "Request codes; none given: all.")
    sample: float = setting(
        1.0, "Share that is captured; 0 leaves out what the rule fits.", low=0.0, high=1.0
    )
    sample_by: str = setting(
        "connection",
        "What is captured wholly or not at all: a client's connection, or a queue of a topic.",
        choices=("connection", "queue"),
    )
    answers: str = setting(
        "whole",
        "How much of an answer is kept: all of it, all but its body, or nothing.",
        choices=("whole", "head", "none"),
    )


@dataclass(frozen=True, slots=True)
class RedactionRule:
    """What is removed from messages before they are written. The first rule whose topics fit counts."""

    topics: list[str] = setting(lambda: ["*"], "Patterns (* and ?) of topics; of retries, the original ones.")
    body: str = setting(
        "keep",
        "What becomes of a message's body: hash leaves 64 hexadecimal digits of its SHA-256.",
        choices=("keep", "drop", "hash", "truncate"),
    )
    truncate_bytes: int = setting(256, "How much truncate leaves.", low=0, high=MIB)
    hash_key: str = setting(
        "", "Makes the hash an HMAC with this key, so that nobody can try bodies out.", secret=True
    )
    properties: list[str] = setting(list, "Patterns of names of properties that are removed.")


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Traffic to files. Credentials (access keys, signatures, tokens, users' passwords) are never written."""

    directory: str = setting("", "Folder of the files, of this gateway alone; empty: nothing is captured.")
    buffer_messages: int = setting(
        100_000, "Exchanges held for the disk; further ones are dropped and counted.", low=1, high=10_000_000
    )
    buffer_bytes: int = setting(64 * MIB, "The same in bytes of frames.", low=64 * 1024, high=16 * 1024 * MIB)
    block_bytes: int = setting(
        256 * 1024, "A block is written when this much waits.", low=4096, high=64 * MIB
    )
    block_interval_ms: int = setting(
        1000, "Or when this long passed; SIGKILL loses no more than that.", low=10, high=60_000
    )
    compression_level: int = setting(1, "zlib's level of blocks; 0 leaves them as they are.", low=0, high=9)
    file_bytes: int = setting(256 * MIB, "A file that would grow larger is closed.", low=64 * 1024)
    file_age_s: int = setting(3600, "A file older than this is closed.", low=1, high=30 * 86_400)
    max_files: int = setting(0, "The oldest files go when there are more; 0: any number.", low=0)
    max_total_bytes: int = setting(
        4096 * MIB, "The oldest files go so that all, the open one grown full, take no more; 0: any.", low=0
    )
    reserve_bytes: int = setting(
        256 * MIB, "Nothing is written while the disk has less room than this left.", low=0
    )
    fsync: str = setting(
        "close",
        "When a file is made to survive a power cut; what was written survives SIGKILL anyway.",
        choices=("never", "close", "block"),
    )
    target_wait_ms: int = setting(
        2000,
        "How long an exchange waits for the answer of the mirror's target; 0: not at all.",
        low=0,
        high=60_000,
    )
    rules: list[CaptureRule] = setting(list, "What is captured; without rules, everything.")
    redact: list[RedactionRule] = setting(list, "What is removed; without rules, credentials only.")

    def __post_init__(self) -> None:
        if 0 < self.max_total_bytes < self.file_bytes:
            raise SettingsError("[capture] max_total_bytes must not be less than file_bytes")
        if self.buffer_bytes < self.block_bytes:
            raise SettingsError("[capture] buffer_bytes must not be less than block_bytes")
