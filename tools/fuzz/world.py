"""The small world that valid requests name: topics, groups and clients that exist, and what the server gave out.

Names are the same in every run, so that a corpus case and a repeated walk find the same things. Receipt handles,
message ids and recall handles come from the server's answers; the newest ones are kept, because the older ones have
been used up by earlier walks. Their number is fixed from the start: a walk draws a place, not a value, so that it draws
the same in a repetition.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from codec.errors import MessageFormatError
from codec.ids import decode_message_id
from codec.message import iter_messages
from codec.properties import properties_text
from compat_tests.clients.popping import pop_request
from compat_tests.clients.typed import (
    connect,
    create_group,
    has_route,
    heartbeat_request,
    send_request,
    topic_request,
)
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.requests.namesrv import PutKvConfig
from remoting.requests.offsets import UpdateConsumerOffset

BROKER_NAME: Final = "broker-a"
CLUSTER: Final = "DefaultCluster"
QUEUES: Final = 4
TOPIC_ATTRIBUTES: Final = {
    "fuzz_normal": "",
    "fuzz_other": "",
    "fuzz_fifo": "+message.type=FIFO",
    "fuzz_delay": "+message.type=DELAY",
    "fuzz_transaction": "+message.type=TRANSACTION",
}
TOPICS: Final = tuple(TOPIC_ATTRIBUTES)
KEPT_TOPIC: Final = "fuzz_kept"
"""A topic that messages are stored in under given offsets only."""
GROUPS: Final = ("fuzz_group", "fuzz_group_2", "fuzz_ordered", "fuzz_broadcast", "fuzz_unknown")
PRODUCER_GROUPS: Final = ("fuzz_producer", "fuzz_producer_2")
CLIENT_IDS: Final = tuple(f"fuzz_client_{number}" for number in range(8))
KEPT_FACTS: Final = 32
"""Number of receipt handles, message ids and recall handles that walks draw from."""


class Receipt(NamedTuple):
    """One popped message."""

    topic: str
    group: str
    queue_id: str
    offset: str
    extra_info: str


class StoredPlace(NamedTuple):
    """The place of one stored message."""

    topic: str
    message_id: str
    queue_id: str
    queue_offset: str
    physical_offset: str


HANDLE_FIELDS: Final = 8
HANDLE_BROKER: Final = 5
"""Number of fields of a receipt handle, and the place of the broker's name, the only one that is no number."""
NO_RECEIPT: Final = Receipt("fuzz_normal", "fuzz_group", "0", "0", "0 1700000000000 60000 0 0 broker-a 0 0")
NO_PLACE: Final = StoredPlace("fuzz_normal", "7F00000100002A9F0000000000000000", "0", "0", "0")


Fact = TypeVar("Fact")


def _facts(first: Fact) -> Callable[[], deque[Fact]]:
    return lambda: deque([first] * KEPT_FACTS, KEPT_FACTS)


@dataclass
class FuzzWorld:
    """The names and facts that valid requests are made of."""

    receipts: deque[Receipt] = field(default_factory=_facts(NO_RECEIPT))
    places: deque[StoredPlace] = field(default_factory=_facts(NO_PLACE))
    halves: deque[StoredPlace] = field(default_factory=_facts(NO_PLACE))
    recall_handles: deque[str] = field(default_factory=_facts(""))

    def learn_send(self, topic: str, reply: Mapping[str, str], *, half: bool) -> None:
        """Take over the place of a message that a send stored; does nothing for an answer without one."""
        try:
            message_id = reply["msgId"].split(",")[0]
            physical = decode_message_id(message_id)[2]
            stored = StoredPlace(topic, message_id, reply["queueId"], reply["queueOffset"], str(physical))
        except (KeyError, MessageFormatError):
            return
        (self.halves if half else self.places).append(stored)
        if handle := reply.get("recallHandle"):
            self.recall_handles.append(handle)

    def learn_pop(self, topic: str, group: str, reply: Mapping[str, str], body: bytes) -> None:
        """Take over the receipt handles of popped messages; handles that a producer made up are left out."""
        try:
            starts = [part.split(" ") for part in (reply.get("startOffsetInfo") or "").split(";") if part]
            start_of = {(kind, queue): start for kind, queue, start in starts}
            for message in iter_messages(body):
                queue = str(message.queue_id)
                extra = message.properties.get("POP_CK") or " ".join(
                    (
                        start_of["0", queue],
                        reply["popTime"],
                        reply["invisibleTime"],
                        reply["reviveQid"],
                        "0",
                        BROKER_NAME,
                        queue,
                        str(message.queue_offset),
                    )
                )
                if _is_handle(extra):
                    self.receipts.append(Receipt(topic, group, queue, str(message.queue_offset), extra))
        except (KeyError, ValueError, MessageFormatError):
            return


def _is_handle(text: str) -> bool:
    """Tell whether a text has the fields of a receipt handle: a mutated send may have stored anything as POP_CK."""
    fields = text.split(" ")
    numbers = (*fields[:HANDLE_BROKER], *fields[HANDLE_BROKER + 1 :])
    return len(fields) == HANDLE_FIELDS and all(number.isascii() and number.isdecimal() for number in numbers)


def set_up_world(namesrv: str, broker: str) -> FuzzWorld:
    """Create the topics, groups, messages and offsets of the world, and learn their places."""
    world = FuzzWorld()
    with connect(broker) as client:
        _create_tables(client)
        _store_messages(client, world)
        client.ask(heartbeat_request(CLIENT_IDS[0], GROUPS[0], TOPICS[0], producer=PRODUCER_GROUPS[0]))
        for topic in TOPICS[:3]:
            _pop(client, world, topic)
    with connect(namesrv) as client:
        client.ask(PutKvConfig(namespace="fuzz", key="key", value="value"))
        eventually(lambda: has_route(client, TOPICS[-1]))
    return world


def _create_tables(client: BlockingClient) -> None:
    for topic, attributes in TOPIC_ATTRIBUTES.items():
        client.ask(topic_request(topic, QUEUES, attributes=attributes))
    client.ask(topic_request(KEPT_TOPIC, QUEUES))
    for group in GROUPS[:-1]:
        create_group(client, group, consume_message_orderly=group == "fuzz_ordered")
    for topic in TOPICS[:2]:
        client.ask(UpdateConsumerOffset(consumer_group=GROUPS[0], topic=topic, queue_id=1, commit_offset=2))


def _store_messages(client: BlockingClient, world: FuzzWorld) -> None:
    for topic in TOPICS:
        half = topic == "fuzz_transaction"
        for number in range(2 * QUEUES):
            properties = {"TAGS": "ab"[number % 2], "KEYS": f"k{number}", "a": str(number)}
            if half:
                properties |= {"TRAN_MSG": "true", "PGROUP": PRODUCER_GROUPS[0]}
            elif topic == "fuzz_delay":
                properties |= {"TIMER_DELAY_SEC": "2"}
            request = send_request(
                topic,
                b"message %d" % number,
                queue_id=number % QUEUES,
                properties=properties_text(properties),
                born_timestamp=1_700_000_000_000,
                sys_flag=4 if half else 0,
            )
            world.learn_send(topic, client.ask(request).to_ext(), half=half)


def _pop(client: BlockingClient, world: FuzzWorld, topic: str) -> None:
    reply = client.ask(pop_request(topic, GROUPS[0], max_msg_nums=8))
    if reply.code == 0:
        world.learn_pop(topic, GROUPS[0], reply.to_ext(), reply.body)


def now_ms() -> str:
    """Return the wall time for fields like ``bornTimestamp``."""
    return str(time.time_ns() // 1_000_000)
