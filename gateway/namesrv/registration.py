"""Registrations of brokers: decoded from a request and checked as a whole before the route table sees them.

A refused registration must not change the table, so every check that does not depend on the table is made here. The
official namesrv checks nothing: an exception ends its changes in the middle, and the first half of them stays. Values
that no official broker sends but that do no harm are accepted, such as a topic without queues.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from codec.constants import ResponseCode
from codec.java_numbers import parse_integer_or, quoted
from gateway.config.limits import NamesrvLimits
from gateway.runtime.run_blocking import RunBlocking
from remoting.bodies.queues import DataVersion
from remoting.bodies.registration import RegisterBrokerBody, RegistrationTooLarge
from remoting.bodies.routes import QueueData, TopicQueueMappingInfo
from remoting.bodies.topics import TopicConfig
from remoting.connection import Connection
from remoting.connection_state import StateSlot
from remoting.errors import RequestError
from remoting.requests.namesrv import RegisterBroker

MAX_NAME_CHARS: Final = 300
"""Maximum length of a name or address. Topics have at most 255 characters, system topics with a broker's name more."""
MAX_QUEUES: Final = 65_536
MAX_PERM: Final = 15
MAX_FILTER_SERVERS: Final = 16
MAX_PORT: Final = 65_535
_HOST: Final = re.compile(r"[\w.:%\[\]-]+")
"""Characters of host names, IPv4 and IPv6 addresses; none that separates or quotes addresses anywhere."""
MAX_TIMEOUT_MS: Final = 600_000
"""Longest silence of a broker, whatever it registers; official brokers register at least once a minute."""


REPLICATES_FIELD: Final = "__REPLICATES"
"""Header field in which brokers of this project said "false" before they replicated: their replicas get no data.
Official namesrvs ignore it."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's description of itself; an ``acting_master`` of None means that the broker is too old to send it.

    ``queues`` are the queues of its topics by topic. ``timeout_ms`` is the silence after which the broker is removed.
    A ``filter_servers`` of None changes nothing. ``replicates`` is False for a broker that sends `REPLICATES_FIELD`.
    ``is_elected`` is True for a broker of this server whose role a controller decides.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    queues: Mapping[str, QueueData] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)
    mappings: Mapping[str, TopicQueueMappingInfo] = field(default_factory=dict)
    filter_servers: list[str] | None = None
    zone: str | None = None
    timeout_ms: float | None = None
    acting_master: bool | None = None
    replicates: bool = True
    is_elected: bool = False


def read_registration(request: RegisterBroker, zone: str | None, limits: NamesrvLimits) -> Registration:
    """Decode and check a request. Thread-safe. Raises RequestError(SYSTEM_ERROR), which says what is wrong."""
    check_name("broker name", request.broker_name)
    check_name("cluster name", request.cluster_name)
    check_address(request.broker_addr)
    for label, text in (("HA address", request.ha_server_addr), ("zone name", zone)):
        if text:
            check_name(label, text)
    if request.broker_id < 0:
        raise refused(f"the broker id {request.broker_id} is negative")
    body = _read_body(request, limits)
    topics = body.topic_config_serialize_wrapper
    return Registration(
        cluster=request.cluster_name,
        broker_name=request.broker_name,
        broker_id=request.broker_id,
        address=request.broker_addr,
        ha_address=request.ha_server_addr,
        queues=_checked_topics(request.broker_name, topics.topic_config_table),
        data_version=topics.data_version,
        mappings=_checked_mappings(topics.topic_queue_mapping_info_map),
        filter_servers=_checked_filter_servers(body.filter_server_list),
        zone=zone,
        timeout_ms=None
        if request.heartbeat_timeout_millis is None
        else min(request.heartbeat_timeout_millis, MAX_TIMEOUT_MS),
        acting_master=request.enable_acting_master,
    )


def _read_body(request: RegisterBroker, limits: NamesrvLimits) -> RegisterBrokerBody:
    if not request.body:
        return RegisterBrokerBody()
    try:
        return RegisterBrokerBody.decode(
            request.body,
            compressed=request.compressed,
            max_bytes=limits.max_registration_bytes,
            max_topics=limits.max_topics_per_broker,
        )
    except RegistrationTooLarge as error:
        key = "maxRegistrationBytes" if error.unit == "bytes" else "maxTopicsPerBroker"
        raise refused(f"{error}: raise {key}, or delete topics") from error


def _checked_topics(broker_name: str, topics: Mapping[str, TopicConfig]) -> dict[str, QueueData]:
    """Return a broker's queues by topic. Topics with equal queues share one object, which is never changed.

    Raises RequestError for topics that no route can have.
    """
    queues: dict[str, QueueData] = {}
    alike: dict[tuple[int, int, int, int], QueueData] = {}
    for topic in topics.values():
        name = topic.topic_name
        if not (0 < len(name) <= MAX_NAME_CHARS and name.isprintable()):
            check_name("topic name", name)
        shape = (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag)
        shared = alike.get(shape)
        if shared is None:
            shared = alike[shape] = checked_queues(name, queue_data(broker_name, topic))
        queues[name] = shared
    return queues


def queue_data(broker_name: str, topic: TopicConfig, perm_mask: int = -1) -> QueueData:
    """Return the queues that a topic gives its broker, with the permissions that the mask leaves."""
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=topic.read_queue_nums,
        write_queue_nums=topic.write_queue_nums,
        perm=topic.perm & perm_mask,
        topic_sys_flag=topic.topic_sys_flag,
    )


def checked_queues(topic: str, queues: QueueData) -> QueueData:
    """Return the queues of a topic. Raises RequestError when no broker can have such a topic."""
    check_name("topic name", topic)
    fits = 0 <= queues.read_queue_nums <= MAX_QUEUES and 0 <= queues.write_queue_nums <= MAX_QUEUES
    if fits and 0 <= queues.perm <= MAX_PERM:
        return queues
    raise refused(
        f"the topic {quoted(topic)} has {queues.read_queue_nums} read queues, {queues.write_queue_nums} write "
        f"queues and permission {queues.perm}; possible are 0 to {MAX_QUEUES} queues and permission 0 to {MAX_PERM}"
    )


def _checked_mappings(
    mappings_by_topic: Mapping[str, TopicQueueMappingInfo],
) -> dict[str, TopicQueueMappingInfo]:
    mappings = {}
    for topic, mapping in mappings_by_topic.items():
        check_name("topic name", topic)
        for label, text in (
            ("broker name", mapping.bname),
            ("topic name", mapping.topic),
            ("scope", mapping.scope),
        ):
            if text:
                check_name(label, text)
        if len(mapping.curr_id_map) > MAX_QUEUES:
            raise refused(f"the static topic {quoted(topic)} has more than {MAX_QUEUES} queues")
        mappings[topic] = mapping
    return mappings


def _checked_filter_servers(servers: Iterable[str]) -> list[str]:
    names = []
    for server in servers:
        check_name("filter server", server)
        names.append(server)
    if len(names) > MAX_FILTER_SERVERS:
        raise refused(f"the registration has {len(names)} filter servers; at most {MAX_FILTER_SERVERS}")
    return names


def check_name(label: str, text: str) -> None:
    """Raise RequestError unless the text can be a name: printable, not blank, and not too long."""
    if not text.strip():
        raise refused(f"the {label} is blank")
    if len(text) > MAX_NAME_CHARS:
        raise refused(f"the {label} {quoted(text)} is longer than {MAX_NAME_CHARS} characters")
    if not text.isprintable():
        raise refused(f"the {label} {quoted(text)!a} has characters that cannot be printed")


def check_address(address: str) -> None:
    """Raise RequestError unless an address is ``host:port`` as clients can dial it."""
    check_name("broker address", address)
    host, _, port = address.rpartition(":")
    is_port = 0 <= parse_integer_or(port, -1) <= MAX_PORT
    if not is_port or not _HOST.fullmatch(host):
        raise refused(f"the broker address {quoted(address)} is not host:port")


def refused(remark: str) -> RequestError:
    """Return the refusal of a request with a remark for the person who runs the broker."""
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)


MAX_INLINE_BYTES: Final = 512 * 1024
"""Up to this size, when inflated, a registration is decoded on the event loop: 3,000 topics, 15 ms."""
MAX_ZLIB_RATIO: Final = 1_032
MAX_WAITING: Final = 64
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
_WAITING: Final = StateSlot[int]("registrations waiting")


class LargeRegistrations:
    """Decodes large registrations in a thread, one at a time, so that they delay no other request.

    100,000 topics take 0.7 s to decode. A thread shares the interpreter with the event loop, which then waits 5 ms at a
    time. Small registrations are decoded at once. Those of a connection whose large one is still being decoded wait for
    it, so that a connection's registrations take effect in order. The queue is bounded in number and bytes.
    """

    def __init__(self, run_blocking: RunBlocking) -> None:
        self._run_blocking = run_blocking
        self._lock = trio.Lock()
        self._waiting = 0
        self._waiting_bytes = 0

    @staticmethod
    def must_wait(request: RegisterBroker, connection: Connection) -> bool:
        """Return True for a registration that is large, or follows a large one of the same connection."""
        inflated_bytes = len(request.body) * (MAX_ZLIB_RATIO if request.compressed else 1)
        return inflated_bytes > MAX_INLINE_BYTES or (connection.state.get(_WAITING) or 0) > 0

    def begin(self, request: RegisterBroker, connection: Connection) -> None:
        """Count a registration that will be read; `end` must follow. Raises RequestError(SYSTEM_BUSY) at a limit."""
        if self._waiting >= MAX_WAITING or self._waiting_bytes + len(request.body) > MAX_WAITING_BYTES:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]too many large registrations are waiting")
        self._waiting += 1
        self._waiting_bytes += len(request.body)
        connection.state[_WAITING] = (connection.state.get(_WAITING) or 0) + 1

    def end(self, request: RegisterBroker, connection: Connection) -> None:
        """Finish a registration counted by `begin`."""
        self._waiting -= 1
        self._waiting_bytes -= len(request.body)
        connection.state[_WAITING] = (connection.state.get(_WAITING) or 0) - 1

    async def read(self, request: RegisterBroker, zone: str | None, limits: NamesrvLimits) -> Registration:
        """Decode and check a registration in the thread, after those before it. Raises RequestError."""
        async with self._lock:
            read: Registration = await self._run_blocking(partial(read_registration, request, zone, limits))
        return read
