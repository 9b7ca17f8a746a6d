"""The bits of a message's system flag.

The protocol's other flag words (frame flag, pull flag, topic flag) are declared where they are used.

Source: MessageSysFlag, CompressionType, 5.4.0.
"""

COMPRESSED = 0x1
MULTI_TAGS = 0x2
TRANSACTION_NONE = 0x0
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
NEED_UNWRAP = 0x40
INNER_BATCH = 0x80

TRANSACTION_MASK = TRANSACTION_ROLLBACK
COMPRESSION_SHIFT = 8
COMPRESSION_MASK = 0x700
COMPRESSION_LZ4 = 0x100
COMPRESSION_ZSTD = 0x200
COMPRESSION_ZLIB = 0x300


def transaction_type(sys_flag: int) -> int:
    """Return the transaction bits alone: one of the four TRANSACTION_ constants."""
    return sys_flag & TRANSACTION_MASK


def with_transaction_type(sys_flag: int, kind: int) -> int:
    """Return the flag with its transaction bits replaced by ``kind``."""
    return sys_flag & ~TRANSACTION_MASK | kind


def is_compressed(sys_flag: int) -> bool:
    """Return True if the body is compressed, with `compression_type`."""
    return sys_flag & COMPRESSED != 0


def compression_type(sys_flag: int) -> int:
    """Return one of the COMPRESSION_ constants; clients older than 5.0 set no type and mean zlib.

    An unknown type is returned as it is.
    """
    return sys_flag & COMPRESSION_MASK or COMPRESSION_ZLIB


def without_compression(sys_flag: int) -> int:
    """Return the flag for the decompressed body. The type bits stay, as in the official code."""
    return sys_flag & ~COMPRESSED


def born_host_bytes(sys_flag: int) -> int:
    """Return the size of the packed born host (address and 4-byte port): 8 or 20."""
    return 20 if sys_flag & BORN_HOST_V6 else 8


def store_host_bytes(sys_flag: int) -> int:
    """Return the size of the packed store host (address and 4-byte port): 8 or 20."""
    return 20 if sys_flag & STORE_HOST_V6 else 8
