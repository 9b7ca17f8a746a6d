"""Signs requests and checks their signatures with a key that both sides know.

A signature covers the header fields and the body, but not code, flag and opaque, which a gateway may change.
Authorization lives in `gateway/broker`.
Source: AclClientRPCHook, AclUtils.combineRequestContent, AclSigner, DefaultAuthenticationContextBuilder.build, 5.4.0.
"""

import binascii
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from codec.command import Command
from codec.constants import VERSION_NAMES

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_VERSION_4_9_3: Final = VERSION_NAMES.index("V4_9_3")
_MAX_CACHED_ORDERS: Final = 1024
"""Sets of header field names whose order is remembered. A header is at most 1 MiB, and strangers choose its names."""


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
    return _encoded_signature(command, secret_key).decode()


def is_signed_with(command: Command, credentials: Credentials) -> bool:
    """Return True if a request carries these credentials' access key and the matching signature."""
    is_theirs = command.ext.get(ACCESS_KEY) == credentials.access_key
    return is_theirs and has_signature(command, credentials.secret_key)


def has_signature(command: Command, secret_key: str) -> bool:
    """Return True if a request carries the signature that belongs to a secret, whoever signed it."""
    given = command.ext.get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(given, _encoded_signature(command, secret_key))


def _encoded_signature(command: Command, secret_key: str) -> bytes:
    digest = hmac.digest(secret_key.encode(), _signed_text(command), "sha1")
    return binascii.b2a_base64(digest, newline=False)


def _signed_text(command: Command) -> bytes:
    """Return the values in the order of their names, followed by the body."""
    ext = command.ext
    names = _signed_names(tuple(ext), command.version <= _VERSION_4_9_3)
    return "".join([ext[name] for name in names]).encode("utf-8", "replace") + command.body


@lru_cache(maxsize=_MAX_CACHED_ORDERS)
def _signed_names(names: tuple[str, ...], is_up_to_4_9_3: bool) -> tuple[str, ...]:
    """Return the names of the signed fields in Java's order.

    Clients up to 4.9.3 mark a search for a unique key after they have signed; servers leave that field out.
    A client sends the same names again and again, and sorting them takes longer than the digest.
    """
    left_out = {SIGNATURE, _UNIQUE_KEY_QUERY} if is_up_to_4_9_3 else {SIGNATURE}
    return tuple(sorted(set(names) - left_out, key=_java_order))


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
