"""What can be set about comparing: table `[compare]`."""

from dataclasses import dataclass

from gateway.shadow.settings import setting


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """Answers and pulls of both clusters are compared, samples of what differs are kept."""

    enabled: bool = setting(True, "Whether anything is compared; there must be a target.")
    answers: float = setting(
        1.0, "Share of mirrored requests whose two answers are compared.", low=0.0, high=1.0
    )
    questions: float = setting(
        0.01,
        "Share of read-only requests (pulls, offsets, routes, settings of topics and groups) that are asked of the "
        "target as well.",
        low=0.0,
        high=1.0,
    )
    questions_per_s: float = setting(
        50.0,
        "Such questions at most, a second; what is beyond is left out and counted.",
        low=0.1,
        high=10_000,
    )
    second_reads: float = setting(
        0.1,
        "Share of them that are asked of the primary once more, to learn which fields differ by themselves.",
        low=0.0,
        high=1.0,
    )
    second_namesrv: list[str] = setting(
        list, "Namesrvs of a second upstream for these second reads; none: the primary itself."
    )
    settle_ms: int = setting(
        1_000, "How long after the primary's answer the target is asked.", low=0, high=600_000
    )
    lag_ms: int = setting(
        10_000,
        "How long a message may be on its way: until then a question is repeated when the answers differ, and parity "
        "waits for it.",
        low=0,
        high=3_600_000,
    )
    waiting: int = setting(1_000, "Questions that wait for their turn at most.", low=1, high=100_000)
    waiting_bytes: int = setting(
        32 * 1024 * 1024, "Bytes of requests and answers that wait with them.", low=65_536
    )
    noise_reads: int = setting(
        10, "So many second reads of a request code are needed before a field of it is noise.", low=1
    )
    noise_share: float = setting(
        0.05, "A field is noise when it differs in this share of the second reads.", low=0.0, high=1.0
    )
    noise_memory: int = setting(
        500, "After so many second reads of a code, what was learned counts half.", low=10
    )
    noise_file: str = setting("", "Where what was learned is kept between starts; empty for nowhere.")
    samples: int = setting(5, "Examples kept for each field of each request code.", low=1, high=1_000)
    latencies: bool = setting(True, "Whether latencies are recorded by request code, 2 us for each request.")
    parity_window: int = setting(
        8_192,
        "Parity gives a message up as missing when so many later ones were read; about 1 KiB each is in memory "
        "while a queue is read.",
        low=64,
        high=1_000_000,
    )
    parity_per_s: float = setting(
        0.0, "Messages a second that parity reads from each cluster; 0 is without limit.", low=0.0
    )
    parity_queues: int = setting(4, "Queues that parity reads at a time.", low=1, high=256)
