"""Messages stored as they are sent, and the ways to find them: by offset, tag, key and time."""

import zlib
from collections import Counter
from pathlib import Path

from acceptance.interchange.kinds import WAIT_S, Kind, Losses, wait_for_count
from acceptance.workload import read_queue
from codec.layouts import INDEX_HEADER
from codec.sysflag import COMPRESSED
from compat_tests.cases.test_query import find
from compat_tests.clients.typed import (
    batch_request,
    messages,
    pull,
    send,
    send_readable,
    send_request,
    topic_request,
)
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.requests.offsets import GetMaxOffset, GetMinOffset, SearchOffsetByTimestamp

PLAIN, BATCHED, PACKED = "InterchangePlain", "InterchangeBatched", "InterchangePacked"
QUEUES = 2
FIRST, LAST = 2400, 120
"""Messages of `Plain.fill` and `Plain.finish`; the first ones fill several commit log, queue and index files."""
KEYS_LOOKED_FOR = 97
GROUPS_OF_KEYS = 120
"""Few enough messages share a key that an answer holds all of them, even if some are indexed twice."""


class Plain(Kind):
    """Messages with properties in two queues, each at the offset that its sender was told."""

    name = "plain messages"

    def __init__(self) -> None:
        self.sent: dict[tuple[int, int], int] = {}
        self.count = 0

    def fill(self, broker: BlockingClient) -> None:
        broker.ask(topic_request(PLAIN, QUEUES))
        self._send(broker, FIRST)

    def finish(self, broker: BlockingClient) -> None:
        self._send(broker, LAST)

    def _send(self, broker: BlockingClient, count: int) -> None:
        for queue_id in range(QUEUES):
            numbers = range(self.count + queue_id, self.count + count, QUEUES)
            replies = broker.pipeline(
                [
                    send_request(PLAIN, body_of(n), queue_id=queue_id, properties=properties_of(n), flag=n)
                    for n in numbers
                ]
            )
            for number, reply in zip(numbers, replies, strict=True):
                self.sent[queue_id, reply.queue_offset] = number
        self.count += count
        for queue_id in range(QUEUES):
            wait_for_count(broker, PLAIN, self.count // QUEUES, queue_id)

    def check(self, broker: BlockingClient) -> Losses:
        for queue_id in range(QUEUES):
            assert broker.ask(GetMinOffset(topic=PLAIN, queue_id=queue_id)).offset == 0
            assert broker.ask(GetMaxOffset(topic=PLAIN, queue_id=queue_id)).offset == self.count // QUEUES
            for message in read_queue(broker, PLAIN, queue_id):
                number = self.sent[queue_id, message.queue_offset]
                assert (message.body, message.flag) == (body_of(number), number)
                assert properties_of(number).items() <= message.properties.items()
        return {}


def body_of(number: int) -> bytes:
    return b"%06d " % number * (1 + number % 370)


def properties_of(number: int) -> dict[str, str]:
    keys = f"key{number} group{number % GROUPS_OF_KEYS}"
    return {
        "UNIQ_KEY": f"{number:032X}",
        "KEYS": keys,
        **({"TAGS": tag_of(number)} if tag_of(number) else {}),
    }


def tag_of(number: int) -> str:
    return ("", "blue", "red")[number % 3]


class Tags(Kind):
    """The messages of one tag, filtered by the server."""

    name = "tags"

    def __init__(self, plain: Plain) -> None:
        self._plain = plain

    def check(self, broker: BlockingClient) -> Losses:
        for expression in ("red", "red || blue", "none"):
            for queue_id in range(QUEUES):
                found = self._pull_all(broker, queue_id, expression)
                tags = expression.split(" || ")
                wanted = {o for (q, o), n in self._plain.sent.items() if q == queue_id and tag_of(n) in tags}
                assert found == sorted(wanted), expression
        return {}

    def _pull_all(self, broker: BlockingClient, queue_id: int, expression: str) -> list[int]:
        found: list[int] = []
        offset, end = 0, self._plain.count // QUEUES
        while offset < end:
            reply = pull(broker, PLAIN, offset, queue_id=queue_id, tags=expression)
            found += [message.queue_offset for message in messages(reply)] if reply.code == 0 else []
            assert reply.next_begin_offset > offset, (reply.code, offset)
            offset = reply.next_begin_offset
        return found


class Keys(Kind):
    """Messages found by one of their keys, by their unique key, and all of one key."""

    name = "keys"

    def __init__(self, plain: Plain, store: Path) -> None:
        self._plain = plain
        self._index = store / "index"

    def finish(self, broker: BlockingClient) -> None:
        """Wait until the last message is in the index: a reader may drop a file that the checkpoint does not cover."""
        end = broker.ask(GetMaxOffset(topic=PLAIN, queue_id=0)).offset
        (last,) = messages(pull(broker, PLAIN, end - 1))
        eventually(lambda: self._index_end_ms() >= last.store_timestamp, WAIT_S, every_s=0.01)

    def _index_end_ms(self) -> int:
        """Return the end time of the newest index file; files are named by the time of their creation."""
        newest = max(self._index.iterdir())
        with newest.open("rb") as file:
            return int(INDEX_HEADER.parse(file.read(INDEX_HEADER.sizeof())).end_timestamp)

    def check(self, broker: BlockingClient) -> Losses:
        numbers = [n * (self._plain.count - 1) // (KEYS_LOOKED_FOR - 1) for n in range(KEYS_LOOKED_FOR)]
        missing: Counter[str] = Counter()
        for number in numbers:
            age = "old" if number < FIRST else "new"
            found = {message.body for message in find(broker, PLAIN, f"key{number}")}
            assert found <= {body_of(number)}
            missing[f"{age} keys"] += not found
            unique = find(broker, PLAIN, f"{number:032X}", unique_key_query=True)
            missing[f"{age} unique keys"] += body_of(number) not in {message.body for message in unique}
        holders = set(range(3, self._plain.count, GROUPS_OF_KEYS))
        found_numbers = {message.flag for message in find(broker, PLAIN, "group3")}
        assert found_numbers <= holders
        missing["messages of a shared key"] = len(holders - found_numbers)
        return dict(missing)


class Times(Kind):
    """Offsets found by store time."""

    name = "times"

    def __init__(self, plain: Plain) -> None:
        self._plain = plain

    def check(self, broker: BlockingClient) -> Losses:
        stored = list(read_queue(broker, PLAIN))
        times = [message.store_timestamp for message in stored]
        assert times == sorted(times)
        for time_ms in (times[0] - 1, *times[:: len(times) // 20], times[-1]):
            reply = broker.ask(SearchOffsetByTimestamp(topic=PLAIN, queue_id=0, timestamp=time_ms))
            assert reply.offset == next(i for i, other in enumerate(times) if other >= time_ms)
        return {}


class Batched(Kind):
    """Batches, which are stored as single messages with consecutive offsets."""

    name = "batches"
    batches, size = 40, 12

    def __init__(self) -> None:
        self.sent: dict[int, bytes] = {}

    def fill(self, broker: BlockingClient) -> None:
        broker.ask(topic_request(BATCHED, 1))
        self._send(broker, range(self.batches))

    def finish(self, broker: BlockingClient) -> None:
        self._send(broker, range(self.batches, self.batches + 3))

    def _send(self, broker: BlockingClient, numbers: range) -> None:
        for number in numbers:
            bodies = [b"batch %d message %d" % (number, place) for place in range(self.size)]
            entries = [(body, {"KEYS": f"b{number}_{place}"}) for place, body in enumerate(bodies)]
            reply = broker.ask(batch_request(BATCHED, entries))
            self.sent |= {reply.queue_offset + place: body for place, body in enumerate(bodies)}
        wait_for_count(broker, BATCHED, len(self.sent))

    def check(self, broker: BlockingClient) -> Losses:
        assert {m.queue_offset: m.body for m in read_queue(broker, BATCHED)} == self.sent
        last = self.batches + 2
        missing = [place for place in range(self.size) if not find(broker, BATCHED, f"b{last}_{place}")]
        return {"keys of the last batch": len(missing)}


class Packed(Kind):
    """Compressed bodies, which servers keep as they are."""

    name = "compressed messages"
    texts = tuple(b"text %d " % number * 900 for number in range(6))

    def fill(self, broker: BlockingClient) -> None:
        broker.ask(topic_request(PACKED, 1))
        for text in self.texts:
            send(broker, PACKED, zlib.compress(text), sys_flag=COMPRESSED)
        wait_for_count(broker, PACKED, len(self.texts))

    def check(self, broker: BlockingClient) -> Losses:
        found = list(read_queue(broker, PACKED))
        assert [zlib.decompress(message.body) for message in found] == [*self.texts]
        assert all(message.sys_flag & COMPRESSED for message in found)
        return {}


class Continued(Kind):
    """New messages behind the old ones: on each queue the next offset, found by pull and by key."""

    name = "new messages"

    def __init__(self, plain: Plain, batched: Batched) -> None:
        self._plain, self._batched = plain, batched

    def check(self, broker: BlockingClient) -> Losses:
        ends = {(PLAIN, queue_id): self._plain.count // QUEUES for queue_id in range(QUEUES)}
        ends |= {(BATCHED, 0): len(self._batched.sent), (PACKED, 0): len(Packed.texts)}
        for (topic, queue_id), end in ends.items():
            properties = {"KEYS": "new"}
            sent = send_readable(broker, topic, b"new", queue_id=queue_id, properties=properties)
            assert sent.queue_offset == end
            (message,) = messages(pull(broker, topic, end, queue_id=queue_id))
            assert message.body == b"new"
        for topic, count in Counter(topic for topic, _ in ends).items():
            wait_for_found(broker, topic, "new", count)
        return {}


def wait_for_found(broker: BlockingClient, topic: str, key: str, count: int) -> None:
    eventually(lambda: len(find(broker, topic, key)) == count, WAIT_S)
