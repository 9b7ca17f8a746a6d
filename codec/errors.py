"""The errors of the byte layer.

Not responsible for what a caller does about them: a connection closes, a store reports the damaged file.
"""


class FrameError(ValueError):
    """A peer sent bytes that are not a remoting frame; nothing after them can be trusted, so close."""


class MessageFormatError(ValueError):
    """Bytes that should hold a stored message, a batch entry or a message id do not."""


class JsonError(ValueError):
    """A body is neither JSON nor the dialect the official JSON library writes."""


class CaptureError(ValueError):
    """Bytes that should be a capture file, or a part of it, are not, from `position` on."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position
        self.reason = reason


class TornError(CaptureError):
    """A block of a capture file that reaches beyond its end: being written, or the last before a machine died."""
