"""Moves the offsets of a consumer group, by a plan that can be shown before it is carried out.

For a group without members, the offsets are committed queue by queue. While members are online, the broker has to
notify them, or they would commit their old offsets again. Brokers pass on only times, not offsets (5.4 accepts offsets
with a setting that is off by default), so an exact offset is refused while a group is online.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from codec.topics import PERM_READ
from gateway.admin.consuming import LATEST
from gateway.admin.errors import AdminError
from gateway.admin.groups import check_group_exists, read_progress
from gateway.admin.output import Row
from remoting.requests.offsets import (
    GetMaxOffset,
    GetMinOffset,
    InvokeBrokerToResetOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)

if TYPE_CHECKING:
    from gateway.admin.client import AdminClient

_LATEST_TIMESTAMP: Final = -1
"""Stands for the end of each queue. Source: Broker2Client.resetOffset, 5.4.0."""


@dataclass(frozen=True, slots=True)
class SeekTarget:
    """The destination: exactly one of ``edge`` (earliest or latest), a time in ms, and an offset is set."""

    edge: str = ""
    time_ms: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class QueueMove:
    """The move of one queue; ``before`` is -1 if the group has no offset there. ``after`` lies within the queue."""

    topic: str
    broker: str
    queue: int
    before: int
    after: int
    min_offset: int
    max_offset: int

    def to_row(self) -> Row:
        """Return the move as a row of a table."""
        return {
            "topic": self.topic,
            "broker": self.broker,
            "queue": self.queue,
            "before": self.before if self.before >= 0 else None,
            "after": self.after,
            "change": self.after - max(self.before, 0),
            "lag": self.max_offset - self.after,
        }


def plan_seek(
    client: "AdminClient", group: str, topic: str, target: SeekTarget, queues: Sequence[int] = ()
) -> list[QueueMove]:
    """Return the moves of all readable queues of a topic, or of some. Raises NotFound, or AdminError without queues."""
    check_group_exists(client, group)
    moves: list[QueueMove] = []
    for data in client.route(topic).queue_datas:
        if not data.perm & PERM_READ:
            continue
        chosen = [queue_id for queue_id in range(data.read_queue_nums) if not queues or queue_id in queues]
        moves += _plan_broker(client, group, topic, data.broker_name, chosen, target)
    if not moves:
        queue_text = f"queue {', '.join(map(str, queues))}" if queues else "readable queue"
        raise AdminError(f'topic "{topic}" has no {queue_text}')
    return moves


def _plan_broker(
    client: "AdminClient", group: str, topic: str, broker: str, queues: Sequence[int], target: SeekTarget
) -> list[QueueMove]:
    address = client.master(broker)
    lows = [client.ask(address, GetMinOffset(topic=topic, queue_id=queue)).offset for queue in queues]
    highs = [client.ask(address, GetMaxOffset(topic=topic, queue_id=queue)).offset for queue in queues]
    committed = {
        (queue.topic, queue.queue_id): offsets.consumer_offset
        for queue, offsets in read_progress(client, broker, group, topic).offset_table.items()
    }
    moves = []
    for queue, low, high in zip(queues, lows, highs, strict=True):
        if target.time_ms is not None:
            request = SearchOffsetByTimestamp(topic=topic, queue_id=queue, timestamp=target.time_ms)
            destination = client.ask(address, request).offset
        elif target.offset is not None:
            destination = target.offset
        else:
            destination = high if target.edge == LATEST else low
        after = min(max(destination, low), high)
        moves.append(QueueMove(topic, broker, queue, committed.get((topic, queue), -1), after, low, high))
    return moves


def check_seek(target: SeekTarget, members: Sequence[str], queues: Sequence[int]) -> None:
    """Raise AdminError for a move that a group with members cannot make."""
    if members and (target.offset is not None or queues):
        raise AdminError(
            f"the group has members ({', '.join(members[:3])}), and members can only be moved in all queues to a "
            "time. Stop them first, or use --to earliest, --to latest or a time without --queue."
        )


def apply_seek(
    client: "AdminClient", group: str, moves: Sequence[QueueMove], target: SeekTarget, *, is_online: bool
) -> None:
    """Move the offsets: through the members of an online group, else by committing them."""
    if is_online:
        time_ms = target.time_ms if target.time_ms is not None else 0
        timestamp = _LATEST_TIMESTAMP if target.edge == LATEST else time_ms
        for broker in sorted({move.broker for move in moves}):
            client.ask_broker(
                broker,
                InvokeBrokerToResetOffset(
                    group=group, topic=moves[0].topic, timestamp=timestamp, is_force=True
                ),
            )
        return
    for move in moves:
        client.ask_broker(
            move.broker,
            UpdateConsumerOffset(
                consumer_group=group, topic=move.topic, queue_id=move.queue, commit_offset=move.after
            ),
        )
