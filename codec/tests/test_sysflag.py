from codec import sysflag


def test_transaction_bits_are_read_and_replaced_alone():
    flag = sysflag.COMPRESSED | sysflag.TRANSACTION_PREPARED | sysflag.COMPRESSION_ZSTD
    assert sysflag.transaction_type(flag) == sysflag.TRANSACTION_PREPARED
    committed = sysflag.with_transaction_type(flag, sysflag.TRANSACTION_COMMIT)
    assert sysflag.transaction_type(committed) == sysflag.TRANSACTION_COMMIT
    assert committed & ~sysflag.TRANSACTION_MASK == flag & ~sysflag.TRANSACTION_MASK


def test_compression_without_a_type_is_zlib():
    assert sysflag.is_compressed(sysflag.COMPRESSED)
    assert not sysflag.is_compressed(sysflag.COMPRESSION_LZ4)
    assert sysflag.compression_type(sysflag.COMPRESSED) == sysflag.COMPRESSION_ZLIB
    assert sysflag.compression_type(sysflag.COMPRESSED | sysflag.COMPRESSION_LZ4) == sysflag.COMPRESSION_LZ4


def test_decompressing_keeps_the_type_bits():
    flag = sysflag.COMPRESSED | sysflag.COMPRESSION_ZLIB
    assert sysflag.without_compression(flag) == sysflag.COMPRESSION_ZLIB


def test_host_sizes():
    assert (sysflag.born_host_bytes(0), sysflag.store_host_bytes(0)) == (8, 8)
    assert (sysflag.born_host_bytes(0x10), sysflag.store_host_bytes(0x10)) == (20, 8)
    assert (sysflag.born_host_bytes(0x20), sysflag.store_host_bytes(0x20)) == (8, 20)
