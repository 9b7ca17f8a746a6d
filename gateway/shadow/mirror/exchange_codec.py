"""Encodes an exchange as the payload of a spill record, and decodes it. Numbers are big-endian.

The format has no version or checksum of its own: `spill_queue.py` stores both.
"""

from struct import Struct
from typing import Final

from gateway.shadow.traffic.exchange import Exchange, Side

_HEAD: Final = Struct(">iqqdddBIIHHH")
"""Code, connection, wall clock (ms), times of request, forwarding and answer (s), flags, sizes of the two frames and
of the three texts."""
_HAS_ANSWER, _REVERSE, _BY_TARGET = 1, 2, 4


def encode_exchange(exchange: Exchange) -> bytes:
    """Return an exchange as bytes."""
    texts = [text.encode() for text in (exchange.client, exchange.upstream, exchange.broker)]
    answer = exchange.answer or b""
    flags = (
        (_HAS_ANSWER if exchange.answer is not None else 0)
        | (_REVERSE if exchange.reverse else 0)
        | (_BY_TARGET if exchange.side is Side.TARGET else 0)
    )
    head = _HEAD.pack(
        exchange.code,
        exchange.connection,
        exchange.wall_ms,
        exchange.asked_s,
        exchange.forwarded_s,
        exchange.answered_s,
        flags,
        len(exchange.request),
        len(answer),
        *map(len, texts),
    )
    return b"".join((head, exchange.request, answer, *texts))


def decode_exchange(payload: bytes) -> Exchange:
    """Return the exchange of bytes made by `encode_exchange`. The bytes have passed their checksum and are trusted."""
    code, connection, wall_ms, asked_s, forwarded_s, answered_s, flags, *sizes = _HEAD.unpack_from(payload)
    parts, at = [], _HEAD.size
    for size in sizes:
        parts.append(payload[at : at + size])
        at += size
    request, answer, client, upstream, broker = parts
    return Exchange(
        code,
        request,
        answer if flags & _HAS_ANSWER else None,
        connection=connection,
        client=client.decode(),
        upstream=upstream.decode(),
        broker=broker.decode(),
        wall_ms=wall_ms,
        asked_s=asked_s,
        forwarded_s=forwarded_s,
        answered_s=answered_s,
        reverse=bool(flags & _REVERSE),
        side=Side.TARGET if flags & _BY_TARGET else Side.PRIMARY,
    )
