"""Signs requests and checks their signatures with a key that both sides know.

A signature covers the header fields and the body, but not code, flag and opaque, which a gateway may change.
Authorization lives in `gateway/broker`.
Source: AclClientRPCHook, AclUtils.combineRequestContent, AclSigner, DefaultAuthenticationContextBuilder.build, 5.4.0.
"""

import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Final

from codec.command import Command
from codec.constants import VERSION_NAMES

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_VERSION_4_9_3: Final = VERSION_NAMES.index("V4_9_3")
_SHA1_BLOCK_BYTES: Final = 64
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))
_MAX_CACHED_KEYS: Final = 4096
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
    """Add the fields of a signature to a request, which must not change afterwards."""
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
    has_access_key = command.ext.get(ACCESS_KEY) == credentials.access_key
    return has_access_key and has_signature(command, credentials.secret_key)


def has_signature(command: Command, secret_key: str) -> bool:
    """Return True if a request carries the signature that a secret makes; its access key is not compared."""
    signature = command.ext.get(SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(signature, _encoded_signature(command, secret_key))


def _encoded_signature(command: Command, secret_key: str) -> bytes:
    inner, outer = _hmac_states(secret_key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(_signed_text(command))
    outer.update(inner.digest())
    return binascii.b2a_base64(outer.digest(), newline=False)


@lru_cache(maxsize=_MAX_CACHED_KEYS)
def _hmac_states(secret_key: str) -> tuple["hashlib._Hash", "hashlib._Hash"]:
    """Return the two SHA1 states of HMAC (RFC 2104) after the block of the key, which all requests of a user share.

    Going on from copies of them takes less than half of the time of `hmac.digest` for a send of 128 bytes.
    """
    key = secret_key.encode()
    if len(key) > _SHA1_BLOCK_BYTES:
        key = hashlib.sha1(key).digest()
    block = key.ljust(_SHA1_BLOCK_BYTES, b"\0")
    inner, outer = (hashlib.sha1(block.translate(pad)) for pad in (_INNER_PAD, _OUTER_PAD))
    return inner, outer


def _signed_text(command: Command) -> bytes:
    """Return the values in the order of their names, followed by the body."""
    ext = command.ext
    values = _signed_values(tuple(ext), command.version <= _VERSION_4_9_3)(ext)
    return "".join(values).encode("utf-8", "replace") + command.body


@lru_cache(maxsize=_MAX_CACHED_ORDERS)
def _signed_values(names: tuple[str, ...], is_up_to_4_9_3: bool) -> Callable[[dict[str, str]], Iterable[str]]:
    """Return a function that returns the values of the signed fields in Java's order of their names.

    Clients up to 4.9.3 mark a search for a unique key after they have signed; servers leave that field out.
    The result is cached by the names: a client sends the same ones each time, and sorting takes longer than the digest.
    """
    left_out = {SIGNATURE, _UNIQUE_KEY_QUERY} if is_up_to_4_9_3 else {SIGNATURE}
    ordered = sorted(set(names) - left_out, key=_java_order)
    # For a single name `itemgetter` returns the value itself; joining its letters gives the same text.
    return itemgetter(*ordered) if ordered else lambda _: ()


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
