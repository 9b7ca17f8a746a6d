"""Settings of mirrors whose target is this server and keeps the primary's queue offsets: the table `[kept]`."""

from dataclasses import dataclass

from remoting.read_only_pull import TOOLS_GROUP
from toolkit.settings import setting


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """How the primary's queues are read and brought to the target."""

    reader_group: str = setting(
        TOOLS_GROUP,
        "Group in whose name the primary is read. It never joins rebalancing and commits nothing. The default is there "
        "on every official broker; another one the primary may create by itself, or refuse.",
    )
    begin: str = setting(
        "history",
        "Where a queue begins that the target has no message of. history: with the first one the primary has; "
        "now: with the next one, and earlier ones can never be brought over.",
        choices=("history", "now"),
    )
    batch_messages: int = setting(
        32, "Most messages of one read; an official broker gives 32 at most.", low=1, high=10_000
    )
    wait_ms: int = setting(
        15_000, "How long a read waits at the primary for the next message.", low=100, high=60_000
    )
    gather_ms: int = setting(
        5,
        "How long a queue rests after a read that brought less than it could, so that the primary is asked less often; "
        "not while a client's answer is held for the target.",
        low=0,
        high=10_000,
    )
    hold_ms: int = setting(
        1_000,
        "How long the mirroring of one message waits for its queue to get there; then it counts as arriving another "
        "way: it will, as soon as the target has what is before it.",
        low=1,
        high=60_000,
    )
    retry_topics: bool = setting(
        True, "Whether retry topics of mirrored groups are kept as well, so that pending retries move too."
    )
    dead_letters: bool = setting(True, "Whether dead-letter topics of mirrored groups are kept as well.")
    discover_ms: int = setting(
        5_000, "Time between looks for new topics and queues at the primary.", low=10, high=600_000
    )
    offsets_ms: int = setting(
        5_000,
        "Time between looks for consumer offsets that are behind the primary's: from before the mirror, of pops, "
        "or lost by the target.",
        low=100,
        high=3_600_000,
    )
    backoff_ms: int = setting(
        100,
        "How long a queue rests after a failure; twice as long after each further one.",
        low=1,
        high=60_000,
    )
    backoff_max_ms: int = setting(5_000, "How long at most.", low=1, high=600_000)
    catch_up_rate: float = setting(
        5_000.0,
        "Messages per second, all queues together, while a queue is more than `live_messages` behind; 0: no limit.",
        low=0,
    )
    catch_up_bytes_rate: float = setting(
        10 * 1024 * 1024.0, "The same in bytes per second; 0: no limit.", low=0
    )
    live_messages: int = setting(
        1_000, "A queue that is no further behind is copied without limit.", low=0, high=1_000_000_000
    )
