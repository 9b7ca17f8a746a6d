"""Addresses in frames: the primary's become ours on the way to clients, ours the primary's on the way back.

Not responsible for which address belongs to which (`addresses.View`).

Where the primary's addresses reach clients that dial them: routes, cluster and member tables (JSON bodies);
message ids in the header of send answers and check-backs; the store host and the id of origin in message bytes.
The last ones are changed in place, and are recognised by what they are: no request has to be remembered for them.
"""

import re
from struct import Struct
from typing import Final

from codec.constants import MAGIC_V1, MAGIC_V2
from codec.message import HEADERS, MIN_MESSAGE_BYTES, SIZE_AND_MAGIC, STORE_TIMESTAMP_AT, SYS_FLAG_AT
from codec.properties import ORIGIN_MESSAGE_ID
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6
from gateway.shadow.proxy.addresses import View
from gateway.shadow.proxy.peek import HEADER_AT, HEADER_BYTES, header_end
from remoting.requests.client import (
    GetAllProducerInfo,
    GetConsumerConnectionList,
    GetProducerConnectionList,
)
from remoting.requests.controller import (
    ControllerElectMaster,
    ControllerGetMetadataInfo,
    ControllerGetReplicaInfo,
    ControllerGetSyncStateData,
)
from remoting.requests.ha import ExchangeBrokerHaInfo, GetBrokerHaStatus
from remoting.requests.namesrv import (
    GetBrokerClusterInfo,
    GetBrokerMemberGroup,
    GetRouteInfoByTopic,
    GetSystemTopicListFromNs,
)
from remoting.requests.offsets import GetBrokerConsumeStats
from remoting.requests.send import ConsumerSendMsgBack

ROUTES: Final = frozenset({GetRouteInfoByTopic.code, GetBrokerClusterInfo.code, GetBrokerMemberGroup.code})
"""Requests whose answers list brokers with addresses that clients dial."""
NAMING: Final = frozenset(
    {
        GetSystemTopicListFromNs.code,
        GetBrokerConsumeStats.code,
        ExchangeBrokerHaInfo.code,
        GetBrokerHaStatus.code,
        ControllerElectMaster.code,
        ControllerGetReplicaInfo.code,
        ControllerGetMetadataInfo.code,
        ControllerGetSyncStateData.code,
    }
)
"""Requests whose answers name a broker by its address, in a header field or deep in a body."""
CONNECTIONS: Final = frozenset(
    {GetConsumerConnectionList.code, GetProducerConnectionList.code, GetAllProducerInfo.code}
)
"""Requests whose answers tell where clients are: of those that came through the gateway, what it knows."""
EDITED_ANSWERS: Final = ROUTES | NAMING | CONNECTIONS
EDITED_REQUESTS: Final = frozenset({ConsumerSendMsgBack.code})
"""Requests that bring a message id back which the broker keeps."""

_MAGICS: Final = (MAGIC_V1.to_bytes(4), MAGIC_V2.to_bytes(4))
_ORIGIN: Final = ORIGIN_MESSAGE_ID.encode() + b"\1"
_STORE_HOST_AT: Final = STORE_TIMESTAMP_AT + 8
_V6_MORE_BYTES: Final = 12
_HEAD = Struct(">II")
_WORD_AT = Struct(">I").unpack_from
_SIGNATURE: Final = b"Signature"
_ADDRESSES = re.compile(rb'"brokerAddrs"\s*:\s*\{([^{}]*)\}')
_ADDRESS = re.compile(rb':\s*"([^"\\]+)"')
_QUOTED = re.compile(rb'"([^"\\\s,{}]+:[0-9]{1,5})"')


def patch_answers(data: bytes, stops: list[int], view: View, id_prefix: bytes) -> bytes | bytearray:
    """Frames with message ids and store hosts as clients may use them; the same object when nothing was to be done.

    Every frame keeps its place. ``id_prefix`` is how ids of the broker that sent these frames begin.
    """
    patched: bytearray | None = None
    our_prefix = view.ids.get(id_prefix) if id_prefix else None
    start = 0
    for stop in stops:
        header_stop = start + HEADER_AT + (_WORD_AT(data, start + 4)[0] & HEADER_BYTES)
        if our_prefix is not None:
            at = data.find(id_prefix, start, min(header_stop, stop))
            if at >= 0:
                patched = bytearray(data) if patched is None else patched
                _patch_ids(patched, at, header_stop, id_prefix, our_prefix)
        if data[header_stop + 4 : header_stop + 8] in _MAGICS and header_stop + MIN_MESSAGE_BYTES <= stop:
            patched = bytearray(data) if patched is None else patched
            patch_store_hosts(patched, header_stop, stop, view.hosts)
            if our_prefix is not None and data.find(_ORIGIN + id_prefix, header_stop, stop) >= 0:
                _patch_origins(patched, header_stop, stop, _ORIGIN + id_prefix, our_prefix)
        start = stop
    return data if patched is None else patched


def _patch_ids(data: bytearray, at: int, stop: int, theirs: bytes, ours: bytes) -> None:
    """A batch has as many ids as messages, in one header field."""
    size = len(theirs)
    while at >= 0:
        data[at : at + size] = ours
        at = data.find(theirs, at + size, stop)


def patch_store_hosts(data: bytearray, start: int, stop: int, hosts: dict[bytes, bytes]) -> None:
    """Changes the store hosts of the messages in ``data[start:stop]``; ends at what is no whole message."""
    theirs, ours = b"", None
    while stop - start >= MIN_MESSAGE_BYTES:
        size, magic = SIZE_AND_MAGIC.unpack_from(data, start)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or not MIN_MESSAGE_BYTES <= size <= stop - start:
            return
        flags = data[start + SYS_FLAG_AT + 3]
        at = start + _STORE_HOST_AT + (_V6_MORE_BYTES if flags & BORN_HOST_V6 else 0)
        end = at + (20 if flags & STORE_HOST_V6 else 8)
        stored = data[at:end]
        if stored != theirs:  # Nearly always the one of the message before.
            theirs = bytes(stored)
            ours = hosts.get(theirs)
        if ours is not None:
            data[at:end] = ours
        start += size


def _patch_origins(data: bytearray, start: int, stop: int, theirs: bytes, ours: bytes) -> None:
    """Messages that were sent back have the id of the first one among their properties, behind topic and body."""
    while stop - start >= MIN_MESSAGE_BYTES:
        header_bytes = HEADERS[data[start + SYS_FLAG_AT + 3] >> 4 & 3].size
        body_at, end = start + header_bytes, start + int.from_bytes(data[start : start + 4])
        if not start + MIN_MESSAGE_BYTES <= end <= stop:
            return
        at = data.find(theirs, body_at + int.from_bytes(data[body_at - 4 : body_at]), end)
        while at >= 0:  # Dead letters have it twice.
            data[at + len(theirs) - len(ours) : at + len(theirs)] = ours
            at = data.find(theirs, at + len(theirs), end)
        start = end


def edit_answer(code: int, frame: bytes, view: View) -> bytes:
    """The answer to a request of one of EDITED_ANSWERS, as its client may use it."""
    if code in NAMING:
        return _named(frame, view.ours)
    if code in CONNECTIONS:
        return _named(frame, view.clients)
    body_at = header_end(frame, 0)
    body = frame[body_at:]
    for group in _ADDRESSES.finditer(body):
        for address in _ADDRESS.finditer(group[1]):
            view.name(address[1].decode("utf-8", "replace"))
    edited = _renamed(body, view.ours)
    return (
        frame if edited == body else _HEAD.pack(body_at + len(edited) - 4, 0)[:4] + frame[4:body_at] + edited
    )


def _named(frame: bytes, names: dict[str, str]) -> bytes:
    """Addresses in quotes, in header and body; the header's length may change as well."""
    body_at = header_end(frame, 0)
    header, body = frame[HEADER_AT:body_at], _renamed(frame[body_at:], names)
    if frame[4] == 0:
        header = _renamed(header, names)
    if len(header) > HEADER_BYTES:
        return frame
    return _HEAD.pack(4 + len(header) + len(body), frame[4] << 24 | len(header)) + header + body


def _renamed(text: bytes, names: dict[str, str]) -> bytes:
    def rename(match: re.Match[bytes]) -> bytes:
        name = names.get(match[1].decode("utf-8", "replace"))
        return match[0] if name is None else b'"%b"' % name.encode()

    return _QUOTED.sub(rename, text)


def edit_request(frame: bytes, view: View) -> bytes:
    """A request of one of EDITED_REQUESTS with message ids as the primary gave them out.

    One that is signed stays as it is: its signature holds for our ids only.
    """
    stop = header_end(frame, 0)
    if frame.find(_SIGNATURE, HEADER_AT, stop) >= 0:
        return frame
    header = frame[HEADER_AT:stop]
    for theirs, ours in view.ids.items():
        if ours in header:
            return frame[:HEADER_AT] + header.replace(ours, theirs) + frame[stop:]
    return frame
