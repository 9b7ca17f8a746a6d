"""Rewrite addresses in frames: the primary's become the gateway's on the way to clients, and back.

Routes can also be shown as writable: the primary's topic may be read-only while the target takes what clients send.

Clients find addresses that they dial in these places: routes, cluster and member tables (JSON bodies); message ids in
the header of send answers and check-backs; the store host and the original id in message bytes. The last two kinds are
changed in place and recognised by their bytes, so no request has to be remembered for them. `AddressView` knows which
address stands for which.
"""

import re
from collections.abc import Collection
from itertools import islice
from struct import Struct
from typing import Final

from codec.constants import MAGIC_V1, MAGIC_V2, MAX_HEADER_BYTES
from codec.message import HEADERS, MIN_MESSAGE_BYTES, SIZE_AND_MAGIC, STORE_TIMESTAMP_AT, SYS_FLAG_AT
from codec.properties import ORIGIN_MESSAGE_ID
from codec.sysflag import BORN_HOST_V6, STORE_HOST_V6
from codec.topics import PERM_WRITE
from gateway.shadow.proxy.address_book import AddressView
from gateway.shadow.proxy.frame_peek import HEADER_AT, HEADER_LENGTH_MASK, find_header_end
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

ROUTE_CODES: Final = frozenset(
    {GetRouteInfoByTopic.code, GetBrokerClusterInfo.code, GetBrokerMemberGroup.code}
)
"""Requests whose answers list brokers with addresses that clients dial."""
BROKER_NAMING_CODES: Final = frozenset(
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
"""Requests whose answers name a broker by its address, in a header field or inside a body."""
CLIENT_NAMING_CODES: Final = frozenset(
    {GetConsumerConnectionList.code, GetProducerConnectionList.code, GetAllProducerInfo.code}
)
"""Requests whose answers list addresses of clients.

The primary sees only the gateway's end of each connection; the gateway puts in the addresses of the real clients."""
REWRITTEN_ANSWER_CODES: Final = ROUTE_CODES | BROKER_NAMING_CODES | CLIENT_NAMING_CODES
REWRITTEN_REQUEST_CODES: Final = frozenset({ConsumerSendMsgBack.code})
"""Requests in which a client hands a message id back to the broker, which stores it."""

MAX_REWRITTEN_BYTES: Final = 4 * 1024 * 1024
"""Larger answers pass as they are: a route of 28,000 brokers, which no client can use. This much takes up to 0.15 s."""
MAX_REWRITTEN_ADDRESSES: Final = 20_000
MAX_PATCHED_MESSAGES: Final = 10_000
"""Messages of one answer whose store host is replaced; brokers return at most a few hundred."""
_MESSAGE_MAGICS: Final = (MAGIC_V1.to_bytes(4), MAGIC_V2.to_bytes(4))
_ORIGIN_PROPERTY: Final = ORIGIN_MESSAGE_ID.encode() + b"\1"
_STORE_HOST_AT: Final = STORE_TIMESTAMP_AT + 8
_IPV6_EXTRA_BYTES: Final = 12
_FIRST_WORDS = Struct(">II")
_WORD_AT = Struct(">I").unpack_from
_SIGNATURE_FIELD: Final = b"Signature"
_BROKER_ADDRESSES = re.compile(rb'"brokerAddrs"\s*:\s*\{([^{}]*)\}')
_ADDRESS = re.compile(rb':\s*"([^"\\]+)"')
_QUEUE_DATAS = re.compile(rb'"queueDatas"\s*:\s*\[([^\[\]]*)\]')
_QUEUE_DATA = re.compile(rb"\{[^{}]*\}")
_BROKER_NAME = re.compile(rb'"brokerName"\s*:\s*"([^"\\]*)"')
_PERMISSION = re.compile(rb'("perm"\s*:\s*)([0-9]{1,9})')
_QUOTED_ADDRESS = re.compile(rb'"([^"\\\s,{}]+:[0-9]{1,5})"')


def patch_answers(data: bytes, stops: list[int], view: AddressView, id_prefix: bytes) -> bytes | bytearray:
    """Replace message ids and store hosts in frames; return ``data`` itself if there are none.

    ``stops`` are the ends of the frames. No frame changes its length. Message ids of the broker that sent these frames
    begin with ``id_prefix``.
    """
    patched: bytearray | None = None
    gateway_prefix = view.id_prefixes.get(id_prefix) if id_prefix else None
    start = 0
    for stop in stops:
        header_stop = start + HEADER_AT + (_WORD_AT(data, start + 4)[0] & HEADER_LENGTH_MASK)
        # Beyond the limit no broker writes a header, and searching it would take long.
        if gateway_prefix is not None and header_stop - start <= MAX_HEADER_BYTES:
            at = data.find(id_prefix, start, min(header_stop, stop))
            if at >= 0:
                patched = bytearray(data) if patched is None else patched
                _patch_ids(patched, at, header_stop, id_prefix, gateway_prefix)
        if (
            data[header_stop + 4 : header_stop + 8] in _MESSAGE_MAGICS
            and header_stop + MIN_MESSAGE_BYTES <= stop
        ):
            patched = bytearray(data) if patched is None else patched
            _patch_store_hosts(patched, header_stop, stop, view.store_hosts)
            if gateway_prefix is not None and data.find(_ORIGIN_PROPERTY + id_prefix, header_stop, stop) >= 0:
                _patch_origins(patched, header_stop, stop, _ORIGIN_PROPERTY + id_prefix, gateway_prefix)
        start = stop
    return data if patched is None else patched


def _patch_ids(data: bytearray, at: int, stop: int, primary_prefix: bytes, gateway_prefix: bytes) -> None:
    """Replace all message ids of a header; the answer to a batch has one per message, in one field."""
    size = len(primary_prefix)
    while at >= 0:
        data[at : at + size] = gateway_prefix
        at = data.find(primary_prefix, at + size, stop)


def _patch_store_hosts(data: bytearray, start: int, stop: int, hosts: dict[bytes, bytes]) -> None:
    """Replace the store hosts of the messages in ``data[start:stop]``; stop at an incomplete message."""
    primary_host, gateway_host = b"", None
    for _ in range(MAX_PATCHED_MESSAGES):
        if stop - start < MIN_MESSAGE_BYTES:
            return
        # A body that begins like a message need not be one, so each step checks before it writes.
        size, magic = SIZE_AND_MAGIC.unpack_from(data, start)
        if (magic != MAGIC_V1 and magic != MAGIC_V2) or not MIN_MESSAGE_BYTES <= size <= stop - start:
            return
        flags = data[start + SYS_FLAG_AT + 3]
        at = start + _STORE_HOST_AT + (_IPV6_EXTRA_BYTES if flags & BORN_HOST_V6 else 0)
        end = at + (20 if flags & STORE_HOST_V6 else 8)
        stored = data[at:end]
        if stored != primary_host:  # Nearly always it equals that of the previous message.
            primary_host = bytes(stored)
            gateway_host = hosts.get(primary_host)
        if gateway_host is not None:
            data[at:end] = gateway_host
        start += size


def _patch_origins(
    data: bytearray, start: int, stop: int, primary_property: bytes, gateway_prefix: bytes
) -> None:
    """Replace the original id, a property of messages that a consumer has sent back.

    ``primary_property`` is the name of the property and the beginning of the id, as they stand in the message.
    """
    for _ in range(MAX_PATCHED_MESSAGES):
        if stop - start < MIN_MESSAGE_BYTES:
            return
        header_bytes = HEADERS[data[start + SYS_FLAG_AT + 3] >> 4 & 3].size
        # Properties come after the body, whose length stands in the last 4 bytes of the header.
        body_at, end = start + header_bytes, start + int.from_bytes(data[start : start + 4])
        if not start + MIN_MESSAGE_BYTES <= end <= stop:
            return
        at = data.find(primary_property, body_at + int.from_bytes(data[body_at - 4 : body_at]), end)
        while at >= 0:  # Dead letters have two such properties.
            property_end = at + len(primary_property)
            data[property_end - len(gateway_prefix) : property_end] = gateway_prefix
            at = data.find(primary_property, property_end, end)
        start = end


def rewrite_answer(
    code: int, frame: bytes, view: AddressView, writable_brokers: Collection[str] = ()
) -> bytes:
    """Return the answer to a request of one of REWRITTEN_ANSWER_CODES with the gateway's addresses.

    In a route, the queues of ``writable_brokers`` get the permission to write.
    """
    # Passed as it is: rewriting it would stop all other clients for too long.
    if len(frame) > MAX_REWRITTEN_BYTES:
        return frame
    if code in BROKER_NAMING_CODES:
        return _rewrite_frame(frame, view.gateway_addresses)
    if code in CLIENT_NAMING_CODES:
        return _rewrite_frame(frame, view.client_addresses)
    body_at = find_header_end(frame, 0)
    body = frame[body_at:]
    groups = _BROKER_ADDRESSES.finditer(body)
    addresses = (address for group in groups for address in _ADDRESS.finditer(group[1]))
    # Each new address gets its port before the client learns of it, so that the rewritten route can name it.
    for address in islice(addresses, MAX_REWRITTEN_ADDRESSES):
        view.translate_address(address[1].decode("utf-8", "replace"))
    edited = _replace_addresses(body, view.gateway_addresses)
    if writable_brokers:
        edited = _add_write_permission(edited, writable_brokers)
    return (
        frame
        if edited == body
        else _FIRST_WORDS.pack(body_at + len(edited) - 4, 0)[:4] + frame[4:body_at] + edited
    )


def _rewrite_frame(frame: bytes, names: dict[str, str]) -> bytes:
    """Replace quoted addresses in header and body; both may change their length."""
    body_at = find_header_end(frame, 0)
    header, body = frame[HEADER_AT:body_at], _replace_addresses(frame[body_at:], names)
    if frame[4] == 0:
        header = _replace_addresses(header, names)
    # The longer addresses do not fit into the header's length field any more.
    if len(header) > HEADER_LENGTH_MASK:
        return frame
    return _FIRST_WORDS.pack(4 + len(header) + len(body), frame[4] << 24 | len(header)) + header + body


def _replace_addresses(text: bytes, names: dict[str, str]) -> bytes:
    def replace_match(match: re.Match[bytes]) -> bytes:
        name = names.get(match[1].decode("utf-8", "replace"))
        return match[0] if name is None else b'"%b"' % name.encode()

    return _QUOTED_ADDRESS.sub(replace_match, text, MAX_REWRITTEN_ADDRESSES)


def _add_write_permission(route: bytes, brokers: Collection[str]) -> bytes:
    """Return the JSON of a route with the permission to write for the queues of these brokers."""

    def add_to_queue(match: re.Match[bytes]) -> bytes:
        broker = _BROKER_NAME.search(match[0])
        if broker is None or broker[1].decode("utf-8", "replace") not in brokers:
            return match[0]
        return _PERMISSION.sub(
            lambda permission: b"%b%d" % (permission[1], int(permission[2]) | PERM_WRITE), match[0]
        )

    return _QUEUE_DATAS.sub(lambda match: _QUEUE_DATA.sub(add_to_queue, match[0]), route)


def restore_message_ids(frame: bytes, view: AddressView) -> bytes:
    """Return a request of one of REWRITTEN_REQUEST_CODES with message ids as the primary assigned them.

    A signed request stays as it is, because the signature covers the gateway's ids.
    """
    stop = find_header_end(frame, 0)
    if frame.find(_SIGNATURE_FIELD, HEADER_AT, stop) >= 0:
        return frame
    header = frame[HEADER_AT:stop]
    for primary_prefix, gateway_prefix in view.id_prefixes.items():
        if gateway_prefix in header:
            return frame[:HEADER_AT] + header.replace(gateway_prefix, primary_prefix) + frame[stop:]
    return frame
