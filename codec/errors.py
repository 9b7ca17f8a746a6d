"""The exceptions of the byte layer. Connections close on them; the store reports the damaged file."""


class FrameError(ValueError):
    """A peer sent bytes that are not a remoting frame. Nothing after them can be trusted, so the connection must
    close.
    """


class MessageFormatError(ValueError):
    """Bytes that should hold a stored message, a batch entry or a message id do not."""


class JsonError(ValueError):
    """A body is neither JSON nor the dialect that the official JSON library writes."""


class JsonSizeError(JsonError):
    """A body has more values than its reader allows."""


class CaptureError(ValueError):
    """Bytes that should be a capture file, or a part of it, are not, from `position` on."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position
        self.reason = reason


class TornError(CaptureError):
    """A block extends beyond the end of its capture file: it is still being written, or the machine crashed."""
