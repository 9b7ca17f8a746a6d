"""A process with a broker on disk that ends in the middle of an append, and what it leaves.

`python -m gateway.tests.native_sends.killed ROOT WHERE` is the process. To end it at a certain store instruction, it
makes a page of a mapped file read-only before it appends: the first write to the page is a SIGSEGV, which nothing
catches, and the page cache keeps what was written before, as after a SIGKILL.
"""

import ctypes
import json
import mmap
import sys
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import trio
import trio.testing

from gateway.tests.native_sends.broker_pair import Side
from gateway.tests.native_sends.frames import binary_frame, plain_fields
from storage.disk_mapping import Buffer
from storage.files import DiskFiles

PAGE_BYTES: Final = mmap.PAGESIZE
PROT_READ: Final = 1
QUEUES: Final = 4
HEAD_BYTES: Final = 8
"""Size and magic number, which an append writes last."""


@dataclass(frozen=True, slots=True)
class Place:
    """A point at which an append is ended.

    The message begins ``head_bytes`` before the end of a page. The page of its head, the next one, or that of the
    queue is read-only. ``messages`` are sent in one read, of which the last one is that message.
    """

    head_bytes: int
    protected: str
    messages: int = 1


PLACES: Final = {
    "rest": Place(200, "next"),
    "rest of the third": Place(200, "next", messages=3),
    "head": Place(HEAD_BYTES, "same"),
    "queue entry": Place(200, "queue"),
}


def body_of(number: int) -> bytes:
    """Return the body of the message of a number, which tells the number."""
    return b"%d " % number + b"x" * (number * 37 % 500)


def frame_of(number: int, body: bytes | None = None) -> bytes:
    fields = plain_fields(
        queue=str(number % QUEUES), properties=f"UNIQ_KEY\x01{number:032X}\x02TAGS\x01a\x02"
    )
    return binary_frame(fields, number, body_of(number) if body is None else body)


def protect_page(buffer: Buffer, position: int) -> None:
    """Make the page of a mapped file read-only. Raises OSError."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer, position - position % PAGE_BYTES))
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), PAGE_BYTES, PROT_READ):
        raise OSError(ctypes.get_errno(), "mprotect")


def end_in_append(side: Side, place: Place) -> None:
    """Append messages until one begins at the place, tell the parent, and append that one."""
    store = side.broker.store
    log, start = store.commit_log, 4 * PAGE_BYTES - place.head_bytes
    for queue_id in range(QUEUES):
        side.feed(frame_of(queue_id, b"x"))
    overhead = log.position // QUEUES - 1
    # The last messages have a body of 100 bytes each; the one before them fills the log up to the place.
    first = start - (place.messages - 1) * (overhead + 100)
    side.feed(frame_of(QUEUES, b"y" * (first - log.position - overhead)))
    assert log.position == first
    frames = [frame_of(QUEUES + 1 + more, b"z" * 100) for more in range(place.messages)]
    queue = store._queues["plain", (QUEUES + place.messages) % QUEUES]
    told = {
        "start": start,
        "whole": QUEUES + place.messages,
        "queue": queue.queue_id,
        "entries": queue.next_offset,
    }
    print(json.dumps(told), flush=True)
    if place.protected == "queue":
        protect_page(queue.buffer, queue.position)
    else:
        protect_page(log.buffer, start if place.protected == "same" else start + PAGE_BYTES)
    side.feed(b"".join(frames))


def append_forever(side: Side) -> None:
    """Append messages, and print how many were acknowledged after each read, until a signal ends the process."""
    acknowledged = 0
    for first in count(0, 20):
        frames = b"".join(frame_of(number) for number in range(first, first + 20))
        answers: Any = side.feed(frames)[1]
        acknowledged += answers.count(b'"code":0,')
        print(acknowledged, flush=True)


def main(root: str, where: str, path: str) -> None:
    async def run() -> None:
        async with trio.open_nursery() as nursery:
            side = Side(nursery, native=path == "native", files=DiskFiles(), store_path_root_dir=root)
            if where == "anywhere":
                append_forever(side)
            end_in_append(side, PLACES[where])

    trio.run(run, clock=trio.testing.MockClock())


if __name__ == "__main__":
    main(*sys.argv[1:])
