"""Requests between a shadow gateway and a target that is this server; no official server knows their codes."""

from remoting.declare import Header, Request, i32, i64

UNEXPECTED_OFFSET = 21
"""PULL_OFFSET_MOVED: the messages are behind what the queue expects next; the reply says where that is."""
PRIVATE_CODES = range(770_000, 771_000)
"""Request codes of this project alone, far from every official range (the highest official one is 200151)."""


class PutMessagesAtOffsetsReply(Header):
    """Where the queue goes on: 0 or one past its last message."""

    next_offset: i64


class PutMessagesAtOffsets(
    Request[PutMessagesAtOffsetsReply],
    code=770_001,
    name="PUT_KEPT_MESSAGES",
    accept_codes=(UNEXPECTED_OFFSET,),
):
    """Store messages at the queue offsets they have.

    The body holds whole stored messages of one queue, as pull answers do, with offsets from ``first_offset`` on
    without a gap. What the queue has already is left out. What lies behind its end (0 for an unused queue) is refused
    with UNEXPECTED_OFFSET, unless ``reset`` says that the messages between are gone for good: then the queue begins at
    ``first_offset`` and forgets what it had.
    """

    topic: str
    queue_id: i32
    first_offset: i64
    reset: bool = False
