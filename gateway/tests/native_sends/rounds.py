"""Rounds of random frames against a pair of brokers, with random settings, and changes of the brokers in between."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.broker.processors.live_config import apply_broker_config
from gateway.tests.configs import change_config
from gateway.tests.native_sends.broker_pair import LIMITS, BrokerPair, PairDiffers, Side, run_pair
from gateway.tests.native_sends.frames import FrameSource, binary_frame, cut_into_reads
from remoting.bodies.topics import TopicConfig
from remoting.limits import ConnectionLimits
from tools.fuzz.values import Chance

ROUND_FRAMES: Final = 5000
"""Frames of one round: enough for several files of the log, few enough to repeat one that differs."""
CHANGE_SHARE: Final = 0.1
"""Share of the reads after which a broker is changed."""
SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {},
    {"flush_disk_type": "SYNC_FLUSH"},
    {"flush_disk_type": "SYNC_FLUSH", "max_message_size_bytes": 4000},
    {"max_message_size_bytes": 200, "trace_on": False},
    {"region_id": 'a"b\\cü', "broker_cluster_name": "é"},
    {"region_id": "", "trace_on": False},
    {"auto_create_topic_enable": False, "broker_fast_failure_enable": False},
    {"message_index_enable": False},
)
CONNECTION_LIMITS: Final = (
    LIMITS,
    LIMITS,
    ConnectionLimits(max_frame_bytes=2000, max_header_bytes=700),
    ConnectionLimits(max_frame_bytes=70_000, max_header_bytes=1000),
    ConnectionLimits(output_high_watermark_bytes=2000),
    ConnectionLimits(output_high_watermark_bytes=0),
    ConnectionLimits(max_outstanding_requests=3),
    ConnectionLimits(max_turn_s=0.0),
)
REMOTES: Final = (("127.0.0.1", 5000), ("10.1.2.255", 65_535), ("::1", 5000), ("2001:db8::a", 1))
LIVE_SETTINGS: Final[tuple[dict[str, Any], ...]] = (
    {"region_id": "elsewhere"},
    {"trace_on": False},
    {"max_message_size_bytes": 150},
    {"broker_permission": 4},
    {"start_accept_send_timestamp_ms": 1_795_000_000_500},
    {"send_queue_capacity": 1},
)


@dataclass(frozen=True, slots=True)
class Round:
    """One repeatable run of a pair, with stores in memory or in a folder."""

    seed: int
    frames: int = ROUND_FRAMES
    folder: Path | None = None

    def run(self) -> int:
        """Return the number of frames taken natively. Raises PairDiffers."""
        chance = Chance(self.seed)
        settings, limits = chance.pick(SETTINGS), chance.pick(CONNECTION_LIMITS)

        async def tell(pair: BrokerPair) -> None:
            source = FrameSource(self.seed, oddity=chance.pick((0.1, 0.4, 0.4, 1.0)))
            frames = (source.frame() for _ in range(self.frames))
            for read in cut_into_reads(source.chance, frames):
                try:
                    pair.both(_pass_time)
                    pair.feed(read)
                    if pair.has_running_tasks or pair.has_held_answers:
                        await pair.settle()
                    if source.chance.random() < CHANGE_SHARE:
                        await _change(pair, source.chance)
                except PairDiffers as error:
                    raise PairDiffers(
                        f"seed {self.seed}, {settings}, {limits}, read {read[:400]!r}: {error}"
                    ) from error

        # Odd requests make a broker log thousands of warnings.
        logging.disable(logging.CRITICAL)
        try:
            return run_pair(tell, settings=settings, limits=limits, folder=self.folder)
        finally:
            logging.disable(logging.NOTSET)


def _pass_time(side: Side) -> None:
    side.clock.pass_ms(1)


async def _change(pair: BrokerPair, chance: Chance) -> None:
    """Change both brokers in one of the ways in which a broker changes between two reads."""
    kind = chance.below(14)
    topic, queue = chance.pick(("plain", "other")), chance.below(4)
    # A pull is answered at the end of a turn, which small limits put at other frames on the two sides.
    if kind <= 2 and pair.limits is LIMITS:
        offset = pair.sides[0].broker.store.max_offset(topic, queue)
        pair.feed(wait_for_message(topic, queue, offset, chance.below(1 << 20)))
    elif kind == 3:
        pair.both(lambda side: side.broker.store.build_index(100))
    elif kind == 4:
        pair.both(lambda side: side.broker.store.write_checkpoint())
    elif kind == 5:
        await pair.settle()
    elif kind == 6:
        remote = chance.pick(REMOTES)
        pair.reconnect(remote)
    elif kind == 7:
        changes = chance.pick(LIVE_SETTINGS)
        original = pair.sides[0].broker.config
        pair.both(lambda side: apply_broker_config(side.broker, change_config(side.broker.config, **changes)))
        frames = FrameSource(chance.getrandbits(30), 0.3)
        pair.feed(b"".join(frames.frame() for _ in range(5)))
        await pair.settle()
        pair.both(lambda side: apply_broker_config(side.broker, original))
    elif kind == 8:
        pair.both(lambda side: setattr(side.broker.store, "disk_full", not side.broker.store.disk_full))
        frames = FrameSource(chance.getrandbits(30), 0.0)
        pair.feed(frames.frame())
        pair.both(lambda side: setattr(side.broker.store, "disk_full", False))
    elif kind == 9:
        pair.both(lambda side: side.broker.topics.delete("other"))
        pair.both(lambda side: side.broker.store.delete_topic("other"))
    elif kind == 10:
        pair.both(lambda side: side.clock.pass_ms(10_000))
        pair.both(lambda side: side.broker.long_polls.answer_all())
        await pair.settle()
    elif kind == 11:
        queues = chance.pick((1, 2, 8))
        pair.both(lambda side: resize_topic(side, "other", queues))
    else:
        pair.both(lambda side: side.clock.pass_ms(-5))


def resize_topic(side: Side, topic: str, queues: int) -> None:
    """Give a topic another number of queues; those that are too many stay in the store."""
    config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
    side.broker.topics.update([config])


def wait_for_message(topic: str, queue: int, offset: int, opaque: int) -> bytes:
    """Return a pull that waits for the next message of a queue."""
    fields = {
        "consumerGroup": "waiting", "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    return binary_frame(fields, opaque, b"", code=11)


def run_rounds(
    seed: int, frames: int, report: Callable[[int, int], None] = lambda frames, taken: None
) -> int:
    """Run as many rounds as give the number of frames; return how many frames were taken natively."""
    done = taken = 0
    while done < frames:
        size = min(ROUND_FRAMES, frames - done)
        taken += Round(seed, size).run()
        done, seed = done + size, seed + 1
        report(done, taken)
    return taken
