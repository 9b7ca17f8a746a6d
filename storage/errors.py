"""The store's exceptions."""


class StoreError(Exception):
    """Base of everything the store refuses or cannot do."""


class StoreFull(StoreError):
    """The disk (or the memory allowance) has no room for the next bytes; nothing was written.

    ``reason`` is the text for clients: unlike the text for the log, it names no path of this machine.
    """

    def __init__(self, text: str, reason: str | None = None) -> None:
        super().__init__(text)
        self.reason = text if reason is None else reason


class StoreUnwritable(StoreFull):
    """The disk refuses bytes although it may have room: a read-only file system, an I/O error, a missing right."""


class FlushFailed(StoreFull):
    """Bytes could not be written to the disk: what the flush covered may be lost, though a later one would succeed.

    The store takes no more messages then, as if the disk were full, until it is opened again. See `FlushGuard`.
    """


class StoreInUse(StoreError):
    """Another process has the store open."""


class MessageIllegal(StoreError):
    """A message that no official broker would store: too large, a malformed batch, or an unusable topic name."""


class OffsetGap(StoreError):
    """An offset-preserving append begins after ``expected``, the queue's next offset: messages between are missing."""

    def __init__(self, expected: int, offset: int) -> None:
        super().__init__(f"the first message has offset {offset}, the queue expects {expected}")
        self.expected = expected


class QueueDiverged(StoreError):
    """A message was to be appended at an offset at which the queue holds a different message."""


class PropertiesTooLong(MessageIllegal):
    """The encoded properties exceed 32,767 bytes, the maximum of their signed 16-bit length."""


class CorruptionError(StoreError):
    """Stored bytes contradict the format at ``offset`` bytes into ``file``."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file} is damaged at byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason
