"""Returns the progress that consumers made at a slave to its master, when that comes back.

While a master is away, consumers read its backlog at a slave and commit their offsets there. In the official broker
the master learns these offsets only from a consumer that lives on until it is back, and commits once more.

An offset is returned if it is greater than the master's, and greater than the one that was here when the tables were
last compared: somebody has committed it here since. Any other that is greater than the master's was moved back there by
an operator, and is not returned. After a restart, this broker starts with the offsets that it has saved as those last
compared.

Only consumers' own commits are returned. What a broker moves by itself, for pops, timers and transaction checks, counts
work that is in the log: another master than the one that did it may lack that part of the log, and would skip messages.

A master of this project takes the offsets in one request, and raises its own to them. For an official master they are
commits, as those of a consumer.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from gateway.broker.consumers.consumer_offsets import ConsumerOffsets, QueueOffsets
from remoting.declare import Request
from remoting.errors import RequestError
from remoting.requests.offsets import UpdateConsumerOffset

log = logging.getLogger(__name__)

OffsetTable = Mapping[str, QueueOffsets]
SendOffsets = Callable[[OffsetTable], Awaitable[object]]
MAX_KEYS_PER_REQUEST: Final = 1000
KEYS_PER_SLICE: Final = 5000
"""Entries of the table that are compared before other tasks get their turn: about a millisecond."""


class ProgressReturn:
    """Finds the offsets of a slave that its master lacks, and sends them.

    ``offsets`` are the slave's. ``is_moved_by_broker`` tells by a key of theirs whether a broker moves the offset.
    """

    def __init__(
        self, offsets: ConsumerOffsets, is_moved_by_broker: Callable[[str], bool] = lambda key: False
    ) -> None:
        self._offsets = offsets
        self._is_moved_by_broker = is_moved_by_broker
        self._compared: dict[str, QueueOffsets] = {key: dict(queues) for key, queues in offsets.table.items()}

    async def return_progress(self, of_master: OffsetTable, send: SendOffsets) -> int:
        """Send the master the offsets that it lacks; return their number.

        Call it after the master's offsets have been merged into the own ones. Raises what ``send`` does, and then the
        next call sends the rest.
        """
        count = 0
        own, compared = self._offsets.table, self._compared
        keys = []
        for number, key in enumerate([*own, *(compared.keys() - own.keys())]):
            if own.get(key) is None:
                compared.pop(key, None)
            elif own[key] != compared.get(key):
                keys.append(key)
            if number % KEYS_PER_SLICE == KEYS_PER_SLICE - 1:
                await trio.lowlevel.checkpoint()
        for start in range(0, len(keys), MAX_KEYS_PER_REQUEST):
            # Copied, because consumers may commit during the request.
            part = {key: dict(own[key]) for key in keys[start : start + MAX_KEYS_PER_REQUEST] if key in own}
            progress = {}
            for key, queues in part.items():
                greatest = _raise_offsets(compared.get(key, {}), of_master.get(key, {}))
                ahead = {
                    queue_id: offset
                    for queue_id, offset in queues.items()
                    if offset > greatest.get(queue_id, -1)
                }
                if ahead and not self._is_moved_by_broker(key):
                    progress[key] = ahead
            if progress:
                await send(progress)
                count += sum(map(len, progress.values()))
            compared.update(part)
            await trio.lowlevel.checkpoint()
        if count:
            log.info("progress of consumers returned to the master", extra={"offsets": count})
        return count


def _raise_offsets(offsets: QueueOffsets, others: QueueOffsets) -> QueueOffsets:
    """Return the greater one of both offsets of each queue."""
    return {
        queue_id: max(offsets.get(queue_id, -1), others.get(queue_id, -1))
        for queue_id in offsets.keys() | others.keys()
    }


async def commit_offsets(offsets: OffsetTable, ask: Callable[[Request[Any]], Awaitable[object]]) -> None:
    """Commit offsets at an official master, one by one. Those that it refuses, of a deleted topic for example, are
    left out.
    """
    for key, queues in offsets.items():
        topic, _, group = key.partition("@")
        for queue_id, offset in queues.items():
            request = UpdateConsumerOffset(
                consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
            )
            try:
                await ask(request)
            except RequestError as error:
                extra = {"key": key, "queue_id": queue_id, "reason": error.remark}
                log.info("the master refuses the progress of consumers", extra=extra)
