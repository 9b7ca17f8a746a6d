"""Decompression of message bodies (zlib, LZ4 frames, zstd) with a limit on the decompressed size."""

import zlib
from typing import Final

import pyarrow as pa

from codec.errors import MessageFormatError
from codec.message import MAX_DECOMPRESSED_BYTES
from codec.sysflag import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD, compression_type

_STREAMS: Final = {COMPRESSION_LZ4: "lz4", COMPRESSION_ZSTD: "zstd"}


def decompress_body(body: bytes, sys_flag: int, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Return the decompressed body; the sys flag names the algorithm.

    Raises MessageFormatError if the body is damaged, decompresses to more than `max_bytes`, or the algorithm is
    unknown.
    Source: CompressionType.findByValue, Lz4Compressor, ZstdCompressor, ZlibCompressor, 5.4.0.
    """
    kind = compression_type(sys_flag)
    if not body:
        raise MessageFormatError("compressed body is empty")
    if kind == COMPRESSION_ZLIB:
        return _inflate_zlib(body, max_bytes)
    if kind not in _STREAMS:
        raise MessageFormatError(f"body has an unknown compression type ({kind >> 8})")
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), _STREAMS[kind]) as stream:
            plain = bytes(stream.read(max_bytes + 1))
    except (OSError, pa.ArrowException) as error:
        raise MessageFormatError(f"compressed body is damaged: {error}") from error
    if len(plain) > max_bytes:
        raise MessageFormatError("compressed body is longer than allowed")
    return plain


def _inflate_zlib(body: bytes, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise MessageFormatError(f"compressed body is damaged: {error}") from error
    if len(plain) > max_bytes:
        raise MessageFormatError("compressed body is longer than allowed")
    if not inflater.eof:
        raise MessageFormatError("compressed body ends early")
    return plain
