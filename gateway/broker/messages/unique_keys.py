"""Generates unique keys for messages that were sent without one. Their layout lives in `codec/ids.py`."""

import itertools
import os
import random

from codec.ids import make_unique_key
from storage.clock import Clock
from toolkit.times import elapsed_in_month_ms


class UniqueKeyGenerator:
    """Generates keys from the broker's address, its process id, the time since the start of the month and a counter.

    A client never generates the same key. Source: MessageClientIDSetter.createUniqID, 5.4.0.
    """

    def __init__(self, clock: Clock, address: str = "127.0.0.1") -> None:
        self._clock = clock
        self._address = address
        self._loader_hash = random.getrandbits(31)
        self._counter = itertools.count(1)

    def next_key(self) -> str:
        """Return a new key of 32 (IPv4) or 56 (IPv6) hexadecimal digits."""
        elapsed_ms = elapsed_in_month_ms(self._clock.now_ms())
        count = next(self._counter) & 0xFFFF
        return make_unique_key(self._address, os.getpid() & 0xFFFF, self._loader_hash, elapsed_ms, count)
