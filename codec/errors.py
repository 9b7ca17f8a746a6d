"""The errors of the byte layer.

Not responsible for what a caller does about them: a connection closes, a store reports the damaged file.
"""


class FrameError(ValueError):
    """A peer sent bytes that are not a remoting frame; nothing after them can be trusted, so close."""


class MessageFormatError(ValueError):
    """Bytes that should hold a stored message, a batch entry or a message id do not."""


class JsonError(ValueError):
    """A body is neither JSON nor the dialect the official JSON library writes."""
