"""Messages that wait in a system topic for their real one: how they are read; not what they wait for."""

import re
from typing import Final, NamedTuple

from codec.constants import MAGIC_V1
from codec.message import HEADERS, SYS_FLAG_AT
from codec.properties import find_property

_REAL_PLACE: Final = re.compile(rb"(?:^|(?<=\x02))REAL_(?:TOPIC|QID)\x01[^\x02]*\x02?")
_AT_END: Final = re.compile(rb"(?<=\x02)REAL_TOPIC\x01([^\x02]+)\x02REAL_QID\x01([0-9]+)\x02\Z")


class Stored(NamedTuple):
    """A stored message that waits; body and properties as they are stored, times in ms."""

    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    store_timestamp: int
    store_host: bytes
    reconsume_times: int
    body: memoryview
    properties: bytes

    @classmethod
    def parse(cls, view: memoryview) -> "Stored":
        """Reads a stored message."""
        header = HEADERS[int.from_bytes(view[SYS_FLAG_AT : SYS_FLAG_AT + 4]) >> 4 & 3]
        values = header.unpack_from(view)
        topic_length_at = header.size + values[14]
        topic_at = topic_length_at + (1 if values[1] == MAGIC_V1 else 2)
        topic_end = topic_at + int.from_bytes(view[topic_length_at:topic_at])
        return cls(
            bytes(view[topic_at:topic_end]),
            values[3],
            values[5],
            values[6],
            values[4],
            values[7],
            values[8],
            values[9],
            values[10],
            values[11],
            values[12],
            view[header.size : topic_length_at],
            bytes(view[topic_end + 2 :]),
        )


def time_and_properties(view: memoryview) -> tuple[int, int, bytes]:
    """Physical offset, store timestamp (ms) and properties of a stored message, for less than all of it costs."""
    header = HEADERS[int.from_bytes(view[SYS_FLAG_AT : SYS_FLAG_AT + 4]) >> 4 & 3]
    values = header.unpack_from(view)
    topic_at = header.size + values[14]
    if values[1] == MAGIC_V1:
        end = topic_at + 1 + view[topic_at]
    else:
        end = topic_at + 2 + int.from_bytes(view[topic_at : topic_at + 2])
    return values[6], values[10], bytes(view[end + 2 :])


def real_place(properties: bytes) -> tuple[str, int, bytes] | None:
    """Real topic, queue and remaining properties of a message that waits; None when they are not told."""
    if (match := _AT_END.search(properties)) is not None:  # As it is written here.
        return match[1].decode(), int(match[2]), properties[: match.start()]
    found, queue_id = find_property(properties, b"REAL_TOPIC"), find_property(properties, b"REAL_QID")
    if found is None or queue_id is None or not queue_id.isdigit():
        return None
    return found.decode(), int(queue_id), _REAL_PLACE.sub(b"", properties)
