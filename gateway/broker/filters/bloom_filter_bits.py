"""Bloom filter bits that consumerFilter.json records for each filter.

This broker never tests them, but an official broker drops the whole file unless the bits are the ones it would
compute. Source: BloomFilter and BloomFilterData, 5.4.0, with expectConsumerNumUseFilter 32 and
maxErrorRateOfBloomFilter 20.
"""

from typing import Final

BITS: Final = 112
HASHES: Final = 3

_MASK: Final = (1 << 64) - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
Pair = tuple[int, int]


def bit_positions(name: str) -> list[int]:
    """Return the positions of the bits for a filter's name, ``group#topic``."""
    hashed = murmur3(name.encode("utf-8", "replace"))
    low, high = hashed & 0xFFFFFFFF, hashed >> 32
    positions = []
    for number in range(1, HASHES + 1):
        combined = (low + number * high) & 0xFFFFFFFF
        positions.append((combined ^ 0xFFFFFFFF if combined >> 31 else combined) % BITS)
    return positions


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128 with seed 0, unsigned."""
    one = other = 0
    whole = len(data) - len(data) % 16
    for start in range(0, whole, 16):
        left, right = _split_block(data[start : start + 16])
        one = ((_rotate_left(one ^ _mix_first_word(left), 27) + other) * 5 + 0x52DCE729) & _MASK
        other = ((_rotate_left(other ^ _mix_second_word(right), 31) + one) * 5 + 0x38495AB5) & _MASK
    left, right = _split_block(data[whole:])
    one, other = one ^ _mix_first_word(left) ^ len(data), other ^ _mix_second_word(right) ^ len(data)
    one = (one + other) & _MASK
    other = (other + one) & _MASK
    return (_final_mix(one) + _final_mix(other)) & _MASK


def _split_block(block: bytes) -> Pair:
    return int.from_bytes(block[:8], "little"), int.from_bytes(block[8:], "little")


def _rotate_left(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _mix_first_word(word: int) -> int:
    return _rotate_left(word * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_second_word(word: int) -> int:
    return _rotate_left(word * _C2 & _MASK, 33) * _C1 & _MASK


def _final_mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
