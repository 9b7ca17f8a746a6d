"""Settings of offset-preserving replication: the table `[replication]`, for targets of kind "ours"."""

from dataclasses import dataclass

from remoting.requests.pull import TOOLS_GROUP
from toolkit.settings import setting


@dataclass(frozen=True, slots=True)
class QueueCopySettings:
    """Limits and choices for reading the primary's queues and copying them to the target."""

    reader_group: str = setting(
        TOOLS_GROUP,
        "Consumer group that reads the primary. It never joins rebalancing and commits nothing. The default group "
        "exists on every official broker; another one may be created by the primary, or refused.",
    )
    begin: str = setting(
        "history",
        "Where to start copying a queue that is empty at the target. history: at the primary's first message; "
        "now: at the next message, and earlier ones can never be copied.",
        choices=("history", "now"),
    )
    batch_messages: int = setting(
        32, "Maximum number of messages per read; an official broker returns at most 32.", low=1, high=10_000
    )
    wait_ms: int = setting(
        15_000, "How long a read waits at the primary for the next message.", low=100, high=60_000
    )
    gather_ms: int = setting(
        5,
        "Pause after a read that returned less than a full batch, so that the primary is read less often; "
        "no pause while a client's answer is held for the target.",
        low=0,
        high=10_000,
    )
    hold_ms: int = setting(
        1_000,
        "How long a mirrored message waits for its queue to be copied. After that it counts as skipped; it still "
        "reaches the target with its queue.",
        low=1,
        high=60_000,
    )
    retry_topics: bool = setting(
        True, "Copy the retry topics of mirrored groups too, so that pending retries move as well."
    )
    dead_letters: bool = setting(True, "Copy the dead-letter topics of mirrored groups too.")
    queues: int = setting(
        20_000,
        "Maximum number of queues that are copied; further ones are left out and counted.",
        low=1,
        high=1_000_000,
    )
    discover_ms: int = setting(
        5_000, "Interval at which the primary is searched for new topics and queues.", low=10, high=600_000
    )
    offsets_ms: int = setting(
        5_000,
        "Interval at which the target's consumer offsets are compared with the primary's and moved forward: those from "
        "before the mirror started, those of pops, and those that the target lost.",
        low=100,
        high=3_600_000,
    )
    backoff_ms: int = setting(
        100,
        "First back-off of a queue after a failure; it doubles with each further failure.",
        low=1,
        high=60_000,
    )
    backoff_max_ms: int = setting(5_000, "Maximum back-off of a queue.", low=1, high=600_000)
    catch_up_rate: float = setting(
        5_000.0,
        "Maximum messages per second of all queues together that are more than `live_messages` behind; 0: no limit.",
        low=0,
    )
    catch_up_bytes_rate: float = setting(
        10 * 1024 * 1024.0, "The same limit in bytes per second; 0: no limit.", low=0
    )
    live_messages: int = setting(
        1_000,
        "A queue that is at most this many messages behind is copied without rate limit.",
        low=0,
        high=1_000_000_000,
    )
