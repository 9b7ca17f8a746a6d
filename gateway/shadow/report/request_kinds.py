"""What one exchange counts as: its kind, its topic, whether the answer is a refusal; by peeking, without decoding.

Not responsible for counting (series is).
"""

import re
from typing import Final

from codec.constants import STORED, ResponseCode
from codec.errors import FrameError
from gateway.shadow.traffic.exchange import Exchange

SEND: Final = "send"
PULL: Final = "pull"
OTHER: Final = "other"

JSON_FRAME: Final = 0
"""The byte after the length of a frame whose header is JSON."""
FINE_START: Final = b'{"code":0,'
"""How most answers that refuse nothing begin, after length and header's length."""
_TOPIC, _SHORT_TOPIC = ("topic", b'"topic":"'), ("b", b'"b":"')
KINDS: Final = {
    10: (SEND, *_TOPIC),
    310: (SEND, *_SHORT_TOPIC),
    320: (SEND, *_SHORT_TOPIC),
    324: (SEND, *_TOPIC),
    325: (SEND, *_SHORT_TOPIC),
    11: (PULL, *_TOPIC),
    361: (PULL, *_TOPIC),
    200050: (PULL, *_TOPIC),
}
"""Sends and reads by request code, and how the header names their topic."""
SENDS: Final = frozenset(code for code, known in KINDS.items() if known[0] is SEND)
_FINE: Final = STORED | {
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
}
"""Answers that refuse nothing: success, stored but not yet safe everywhere, and what a read finds besides messages."""
_CODE: Final = re.compile(rb'"code"\s*:\s*(-?\d+)')


def topic_of(exchange: Exchange) -> bytes:
    """The topic that a send or a read names, as UTF-8; empty for other requests and for what cannot be read."""
    known = KINDS.get(exchange.code)
    return b"" if known is None else named_topic(exchange, known[1], known[2])


def named_topic(exchange: Exchange, name: str, quoted: bytes) -> bytes:
    """The same when it is known already how the header names it; ``quoted`` is the name as it stands in JSON."""
    request = exchange.request
    if request[4] == JSON_FRAME:
        end = 8 + (request[6] << 8 | request[7])
        start = request.find(quoted, 8, end)
        if start > 0:
            start += len(quoted)
            return request[start : request.find(b'"', start, end)]
    try:
        return exchange.request_command.ext.get(name, "").encode()
    except FrameError:
        return b""


def is_refused(answer: bytes) -> bool:
    """Whether an answer says that the request was not served."""
    if answer.startswith(FINE_START, 8):
        return False
    if answer[4] != JSON_FRAME:
        return int.from_bytes(answer[8:10], "big", signed=True) not in _FINE
    found = _CODE.search(answer, 8, 8 + int.from_bytes(answer[5:8], "big"))
    return found is not None and int(found[1]) not in _FINE
