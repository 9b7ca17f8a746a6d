"""Signs requests and checks their signatures with a key that both sides know.

A signature covers the header fields and the body, but not code, flag and opaque, which a gateway may change.
Authorization lives in `gateway/broker`.
Source: AclClientRPCHook, AclUtils.combineRequestContent, AclSigner, DefaultAuthenticationContextBuilder.build, 5.4.0.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from codec.command import Command
from codec.constants import VERSION_NAMES

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_VERSION_4_9_3: Final = VERSION_NAMES.index("V4_9_3")


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key, its secret and an optional security token; its repr shows only the access key."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


def make_signer(credentials: Credentials) -> Callable[[Command], None]:
    """Return a function that signs requests; an existing signature of a request is replaced."""

    def sign_one(command: Command) -> None:
        sign_request(command, credentials)

    return sign_one


def sign_request(command: Command, credentials: Credentials) -> None:
    """Add the fields of a signature to a request. Nothing may be added to it afterwards."""
    ext = command.ext
    ext[ACCESS_KEY] = credentials.access_key
    ext.pop(SECURITY_TOKEN, None)
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = compute_signature(command, credentials.secret_key)


def compute_signature(command: Command, secret_key: str) -> str:
    """Return the signature that a request must have: HmacSHA1 in base 64."""
    digest = hmac.digest(secret_key.encode(), _signed_text(command), hashlib.sha1)
    return base64.b64encode(digest).decode()


def is_signed_with(command: Command, credentials: Credentials) -> bool:
    """Return True if a request carries these credentials' access key and the matching signature."""
    given = command.ext.get(SIGNATURE, "").encode("utf-8", "replace")
    right = compute_signature(command, credentials.secret_key).encode()
    return command.ext.get(ACCESS_KEY) == credentials.access_key and hmac.compare_digest(given, right)


def _signed_text(command: Command) -> bytes:
    """Return the values in the order of their names, followed by the body.

    Clients up to 4.9.3 mark a search for a unique key after they have signed; servers leave that field out.
    """
    left_out = {SIGNATURE}
    if command.version <= _VERSION_4_9_3:
        left_out.add(_UNIQUE_KEY_QUERY)
    names = sorted(command.ext.keys() - left_out, key=_java_order)
    return "".join(map(command.ext.__getitem__, names)).encode("utf-8", "replace") + command.body


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
