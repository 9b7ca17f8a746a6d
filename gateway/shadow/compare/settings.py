"""Settings of the comparison: table `[compare]`."""

from dataclasses import dataclass

from toolkit.settings import setting


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """Comparison of answers and content between both clusters."""

    enabled: bool = setting(True, "Compare answers and content; needs a target.")
    answers: float = setting(
        1.0, "Share of mirrored requests whose two answers are compared.", low=0.0, high=1.0
    )
    repeated_reads: float = setting(
        0.01,
        "Share of read-only requests (pulls, offsets, routes, settings of topics and groups) that are repeated at the "
        "target.",
        low=0.0,
        high=1.0,
    )
    repeated_reads_per_s: float = setting(
        50.0,
        "Maximum number of repeated requests per second; further ones are left out and counted.",
        low=0.1,
        high=10_000,
    )
    second_reads: float = setting(
        0.1,
        "Share of the repeated requests that are also repeated at the primary, to learn which fields differ for no "
        "reason.",
        low=0.0,
        high=1.0,
    )
    second_namesrv: list[str] = setting(
        list, "Namesrvs of a second upstream for these second reads; empty: the primary itself."
    )
    settle_ms: int = setting(
        1_000,
        "Delay between the primary's answer and the repeated request, in milliseconds.",
        low=0,
        high=600_000,
    )
    lag_ms: int = setting(
        10_000,
        "Time a message may take to reach the target, in milliseconds. Until then a differing read is repeated, and "
        "parity waits for the message.",
        low=0,
        high=3_600_000,
    )
    waiting: int = setting(
        1_000, "Maximum number of repeated requests that wait for their turn.", low=1, high=100_000
    )
    waiting_bytes: int = setting(
        32 * 1024 * 1024, "Maximum size of their requests and answers, in bytes.", low=65_536
    )
    noise_reads: int = setting(
        10, "Minimum number of second reads of a request code before one of its fields can be noise.", low=1
    )
    noise_share: float = setting(
        0.05, "Share of second reads in which a field must differ to be noise.", low=0.0, high=1.0
    )
    noise_memory: int = setting(
        500,
        "Number of second reads of a code after which its counts are halved, so that steady fields are compared again.",
        low=10,
    )
    noise_file: str = setting("", "File that stores the learned noise across restarts; empty: not stored.")
    samples: int = setting(
        5, "Maximum number of examples kept for each field of each request code.", low=1, high=1_000
    )
    latencies: bool = setting(True, "Record latencies by request code; costs 2 us per request.")
    parity_window: int = setting(
        8_192,
        "Number of later messages after which parity reports a message as missing; each takes about 1 KiB of memory "
        "while a queue is read.",
        low=64,
        high=1_000_000,
    )
    parity_per_s: float = setting(
        0.0,
        "Maximum number of messages per second that parity reads from each cluster; 0: no limit.",
        low=0.0,
    )
    parity_queues: int = setting(4, "Number of queues that parity reads at a time.", low=1, high=256)
