"""Classifies an exchange without decoding it: kind, topic, and whether the answer is a refusal.

It runs for every request of clients, so it searches the frames for the few bytes it needs.
"""

import re
from typing import Final

from codec.constants import STORED_CODES, ResponseCode
from codec.errors import FrameError
from gateway.shadow.traffic.exchange import Exchange

SEND: Final = "send"
PULL: Final = "pull"
OTHER: Final = "other"

JSON_HEADER_TYPE: Final = 0
"""The byte after the length of a frame whose header is JSON."""
SUCCESS_PREFIX: Final = b'{"code":0,'
"""The start of the JSON header of most successful answers, after the two length words."""
_TOPIC, _SHORT_TOPIC = ("topic", b'"topic":"'), ("b", b'"b":"')
REQUEST_KINDS: Final = {
    10: (SEND, *_TOPIC),
    310: (SEND, *_SHORT_TOPIC),
    320: (SEND, *_SHORT_TOPIC),
    324: (SEND, *_TOPIC),
    325: (SEND, *_SHORT_TOPIC),
    11: (PULL, *_TOPIC),
    361: (PULL, *_TOPIC),
    200050: (PULL, *_TOPIC),
}
"""Sends and reads by request code, with the header field that names their topic."""
SEND_CODES: Final = frozenset(code for code, known in REQUEST_KINDS.items() if known[0] is SEND)
_NOT_REFUSALS: Final = STORED_CODES | {
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
    ResponseCode.POLLING_FULL,
    ResponseCode.POLLING_TIMEOUT,
}
"""Response codes that are not refusals: success, stored but not yet safe everywhere, and reads without messages."""
_CODE_PATTERN: Final = re.compile(rb'"code"\s*:\s*(-?\d{1,10})')


def peek_topic(exchange: Exchange) -> bytes:
    """Return the topic of a send or a read as UTF-8; empty for other requests and for unreadable ones."""
    known = REQUEST_KINDS.get(exchange.code)
    return b"" if known is None else peek_named_topic(exchange, known[1], known[2])


def peek_named_topic(exchange: Exchange, name: str, quoted: bytes) -> bytes:
    """Return the topic when its header field is known already; ``quoted`` is the field's name as it appears in JSON."""
    request = exchange.request
    if request[4] == JSON_HEADER_TYPE:
        end = 8 + (request[6] << 8 | request[7])
        start = request.find(quoted, 8, end)
        if start > 0:
            start += len(quoted)
            return request[start : request.find(b'"', start, end)]
    try:
        return exchange.request_command.ext.get(name, "").encode("utf-8", "replace")
    except FrameError:
        return b""


def is_refusal(answer: bytes) -> bool:
    """Return whether an answer says that the request was refused."""
    if answer.startswith(SUCCESS_PREFIX, 8):
        return False
    if answer[4] != JSON_HEADER_TYPE:
        return int.from_bytes(answer[8:10], "big", signed=True) not in _NOT_REFUSALS
    found = _CODE_PATTERN.search(answer, 8, 8 + int.from_bytes(answer[5:8], "big"))
    return found is not None and int(found[1]) not in _NOT_REFUSALS
