"""Java bit sets as JSON bodies hold them: the bytes in base64, the lowest bit first.

Source: BitSetSerializerDeserializer, 5.4.0.
"""

import base64
import re

_NOT_ZERO = re.compile(rb"[^\0]")


def decode_bit_set(text: str, max_bits: int) -> list[int]:
    """Return the numbers of the set bits in order, in time linear in the text, however far apart they are.

    Raises ValueError for text that is not base64, and for more than ``max_bits`` set bits.
    """
    data = base64.b64decode(text, validate=True)
    bits: list[int] = []
    for match in _NOT_ZERO.finditer(data):
        at = match.start()
        bits += [8 * at + bit for bit in range(8) if data[at] >> bit & 1]
        if len(bits) > max_bits:
            raise ValueError(f"more than {max_bits} bits are set")
    return bits
