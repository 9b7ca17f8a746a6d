"""A typed request that is passed to a handler of this process in place of a decoded frame.

A handler that takes typed requests gets the request itself, and its typed reply goes back as it is: neither of them
becomes bytes. Guards, and handlers that work on raw commands, read ``ext`` and ``body`` as they do of a frame; the two
are made when something first reads them. Caller and handler share the request and the reply, so neither changes them
once they are passed on.
"""

import hmac
from typing import Any

import trio

from codec.command import Command
from codec.constants import CURRENT_VERSION, FLAG_ONEWAY
from remoting.acl import ACCESS_KEY, Credentials, has_signature
from remoting.declare import Header, Request

Outcome = Command | Header | Exception | None
"""The decoded answer of a handler that works on raw commands, a typed reply, a refusal, or no reply at all."""


class LocalCommand(Command):
    """A request of a caller in this process. ``caller`` is the user whose identity was verified, if there is one.

    It carries no signature: nobody could have changed the request since its caller was verified.
    """

    __slots__ = ("_arrived", "caller", "is_answered", "outcome", "request")

    def __init__(
        self,
        request: Request[Any],
        opaque: int,
        caller: Credentials | None,
        language: str,
        *,
        oneway: bool = False,
    ) -> None:
        # Without those of the base class, because `ext` stays unset until `__getattr__` is asked for it, and so does a
        # body that must be encoded.
        self.code = request.code
        self.opaque = opaque
        self.flag = FLAG_ONEWAY if oneway else 0
        self.remark = None
        self.language = language
        self.version = CURRENT_VERSION
        self.binary = False
        if request.BODY is None:
            self.body = request.body
        self.request = request
        self.caller = caller
        self.is_answered = False
        self.outcome: Outcome = None
        self._arrived: trio.Event | None = None

    def __getattr__(self, name: str) -> Any:
        """Make the header fields or the body. Python calls this only for attributes that are not set."""
        if name == "ext":
            self.ext = self.request.to_ext()
            if self.caller is not None:
                self.ext[ACCESS_KEY] = self.caller.access_key
            return self.ext
        if name == "body":
            self.body = self.request.encode_body()
            return self.body
        raise AttributeError(name)

    def settle(self, outcome: Outcome) -> None:
        """Take the outcome, and wake up the caller. Any further outcome is ignored."""
        if self.is_answered:
            return
        self.is_answered = True
        self.outcome = outcome
        if self._arrived is not None:
            self._arrived.set()

    async def wait_answered(self) -> None:
        """Wait until there is an outcome."""
        if not self.is_answered:
            self._arrived = trio.Event()
            await self._arrived.wait()


def proves_secret(command: Command, secret_key: str) -> bool:
    """Return True if the sender of a request knows a secret: by its signature, or as a verified caller.

    The secret may have been changed since a caller was verified.
    """
    if isinstance(command, LocalCommand):
        caller = command.caller
        return caller is not None and hmac.compare_digest(caller.secret_key.encode(), secret_key.encode())
    return has_signature(command, secret_key)
