"""What can go wrong in a store, as types a caller can tell apart; not how it is answered to a client."""


class StoreError(Exception):
    """Anything the store refuses or cannot do."""


class StoreFull(StoreError):
    """The disk (or the memory allowance) has no room for the next bytes; nothing was written."""


class StoreClosed(StoreError):
    """The store was closed before the call."""


class StoreInUse(StoreError):
    """Another process has the store open."""


class MessageIllegal(StoreError):
    """A message that no official broker would store: too large, malformed batch, unusable topic name."""


class OffsetGap(StoreError):
    """A message with its own queue offset lies behind what its queue expects next, `expected`."""

    def __init__(self, expected: int, given: int) -> None:
        super().__init__(f"offset {given} is given where {expected} is expected")
        self.expected = expected


class QueueDiverged(StoreError):
    """A queue holds another message at the offset that a message brings along."""


class PropertiesTooLong(MessageIllegal):
    """The encoded properties exceed 32,767 bytes, the most their signed 16-bit length can say."""


class CorruptionError(StoreError):
    """Stored bytes contradict the format at `offset` bytes into `file`."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file} is damaged at byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason
