"""Messages that a server has to do something with later: delays, timers, transactions, retries, pops."""

from collections import Counter

from acceptance.interchange.kinds import (
    WAIT_S,
    Kind,
    Losses,
    bodies_in,
    surplus,
    wait_for_bodies,
    wait_for_count,
)
from acceptance.workload import read_queue
from codec.constants import MAGIC_V2
from codec.message import SIZE_AND_MAGIC
from compat_tests.cases.test_query import find
from compat_tests.cases.test_restart_transactions import answer_questions
from compat_tests.cases.test_retry import back
from compat_tests.cases.test_timer import now_ms, recall
from compat_tests.cases.test_transactions import COMMIT, ROLLBACK, end, half
from compat_tests.clients.popping import PoppedMessage, ack, pop_messages, pop_until, send_each
from compat_tests.clients.typed import create_group, messages, pull, send, send_readable, topic_request
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.requests.send import SendMessageReply

DELAYED, TIMED, TRANSACTED, RETRIED, POPPED = (
    f"Interchange{name}" for name in ("Delayed", "Timed", "Transacted", "Retried", "Popped")
)
RETRIERS, POPPERS = "interchange_retriers", "interchange_poppers"
LATE_LEVEL, LATE_LEVEL_MS = "4", 30_000
INVISIBLE_MS = 20_000


class Later(Kind):
    """Messages that become visible at a time: some before the end, some right before it, some long after it."""

    topic = ""
    due_ms: dict[str, int]

    def __init__(self) -> None:
        self.due_ms = {}

    def _send(self, broker: BlockingClient, name: str, delay_ms: int) -> SendMessageReply:
        """Send a message with this body that is due in `delay_ms`."""
        raise NotImplementedError

    def fill(self, broker: BlockingClient) -> None:
        broker.ask(topic_request(self.topic, 1))
        self._send_all(broker, "early", 30, 1_000)
        wait_for_bodies(broker, self.topic, self.due_ms)

    def schedule(self, broker: BlockingClient) -> None:
        self._send_all(broker, "late", 60, LATE_LEVEL_MS)  # with the others more than a file of the timer log
        self._send_all(broker, "recent", 3, 1_000)

    def wait_for_scheduled(self, broker: BlockingClient) -> None:
        wait_for_bodies(broker, self.topic, [name for name in self.due_ms if name.startswith("recent")])

    def _send_all(self, broker: BlockingClient, kind: str, count: int, delay_ms: int) -> None:
        for number in range(count):
            name = f"{kind}{number}"
            self.due_ms[name] = now_ms() + delay_ms
            self._send(broker, name, delay_ms)

    def check(self, broker: BlockingClient) -> Losses:
        wait_for_bodies(broker, self.topic, self.due_ms)
        due_ms = {**self.due_ms, "last": now_ms() + 1_000}
        self._send(broker, "last", 1_000)  # behind copies of the others that are still to come
        wait_for_bodies(broker, self.topic, due_ms)
        found = Counter[str]()
        for message in read_queue(broker, self.topic):
            name = message.body.decode()
            found[name] += 1
            assert message.store_timestamp >= due_ms[name], name
        assert found.keys() == due_ms.keys()
        return {
            f"{kind} messages twice": surplus(found, [name for name in found if name.startswith(kind)])
            for kind in ("early", "recent", "late")
        }


class Delayed(Later):
    """Messages with a delay level."""

    name = "delayed messages"
    topic = DELAYED

    def _send(self, broker: BlockingClient, name: str, delay_ms: int) -> SendMessageReply:
        level = LATE_LEVEL if delay_ms == LATE_LEVEL_MS else "1"
        return send(broker, DELAYED, name.encode(), properties={"DELAY": level, "UNIQ_KEY": f"delayed{name}"})


class Timed(Later):
    """Timer messages, and one that is recalled."""

    name = "timer messages"
    topic = TIMED
    only_5 = True

    def _send(self, broker: BlockingClient, name: str, delay_ms: int) -> SendMessageReply:
        properties = {"TIMER_DELIVER_MS": str(now_ms() + delay_ms), "UNIQ_KEY": f"{TIMED}{name}"}
        return send(broker, TIMED, name.encode(), properties=properties)

    def schedule(self, broker: BlockingClient) -> None:
        sent = self._send(broker, "recalled", LATE_LEVEL_MS)
        broker.ask(recall(TIMED, sent.recall_handle or ""))
        super().schedule(broker)


class Transacted(Kind):
    """Half messages: committed, rolled back, and left to the check-backs of the next server."""

    name = "transactions"

    def fill(self, broker: BlockingClient) -> None:
        broker.ask(topic_request(TRANSACTED, 1))
        for number in range(6):
            self._end(broker, f"committed{number}", COMMIT)
            self._end(broker, f"dropped{number}", ROLLBACK)
            half(broker, TRANSACTED, f"left{number}")
        wait_for_count(broker, TRANSACTED, 6)

    def finish(self, broker: BlockingClient) -> None:
        for number in range(6, 9):
            self._end(broker, f"committed{number}", COMMIT)
            self._end(broker, f"dropped{number}", ROLLBACK)
            half(broker, TRANSACTED, f"left{number}")

    def _end(self, broker: BlockingClient, key: str, decision: int) -> None:
        broker.ask(end(half(broker, TRANSACTED, key), decision))

    def check(self, broker: BlockingClient) -> Losses:
        left = {f"left{number}" for number in range(9)}
        committed = {f"committed{number}" for number in range(9)}
        asked = answer_questions(
            broker, lambda key: ROLLBACK if key.startswith("d") else COMMIT, left, WAIT_S
        )
        wait_for_bodies(broker, TRANSACTED, [f"body {key}" for key in committed | left])
        found = bodies_in(broker, TRANSACTED)
        assert found.keys() == {f"body {key}" for key in committed | left}
        old = [f"{kind}{number}" for kind in ("committed", "dropped") for number in range(6)]
        return {
            "ended transactions asked about": len(set(asked) & set(old)),
            "transactions ended last asked about": len(set(asked) - set(old) - left),
            "committed messages twice": surplus(found, found),
        }


class Retried(Kind):
    """Messages that a consumer sent back, some of which are still delayed, and dead letters."""

    name = "retries and dead letters"

    def fill(self, broker: BlockingClient) -> None:
        broker.ask(topic_request(RETRIED, 1))
        create_group(broker, RETRIERS)
        for number in range(3):
            sent = send(broker, RETRIED, b"retried%d" % number)
            broker.ask(back(RETRIERS, RETRIED, sent.msg_id))
            sent = send(broker, RETRIED, b"dead%d" % number)
            broker.ask(back(RETRIERS, RETRIED, sent.msg_id, delay_level=-1))
        wait_for_bodies(broker, f"%RETRY%{RETRIERS}", [f"retried{number}" for number in range(3)])
        wait_for_count(broker, f"%DLQ%{RETRIERS}", 3)

    def finish(self, broker: BlockingClient) -> None:
        sent = send(broker, RETRIED, b"waiting")
        broker.ask(back(RETRIERS, RETRIED, sent.msg_id, delay_level=3))

    def check(self, broker: BlockingClient) -> Losses:
        wanted = ["retried0", "retried1", "retried2", "waiting"]
        found = wait_for_bodies(broker, f"%RETRY%{RETRIERS}", wanted)
        assert found.keys() == set(wanted)
        for message in read_queue(broker, f"%RETRY%{RETRIERS}"):
            assert (message.reconsume_times, message.properties["RETRY_TOPIC"]) == (1, RETRIED)
        assert bodies_in(broker, f"%DLQ%{RETRIERS}") == Counter(["dead0", "dead1", "dead2"])
        return {"retries twice": surplus(found, found)}


class Popped(Kind):
    """Popped messages: acknowledged ones are done, the others come again; and those that nobody has popped yet."""

    name = "pops"
    only_5 = True
    names = tuple(b"%d" % number for number in range(12))

    def __init__(self) -> None:
        self._out: list[PoppedMessage] = []
        self.acked: set[bytes] = set()
        self.acked_last: set[bytes] = set()

    def fill(self, broker: BlockingClient) -> None:
        broker.ask(topic_request(POPPED, 1))
        create_group(broker, POPPERS)
        send_each(broker, POPPED, self.names)
        self._out = pop_until(broker, POPPED, POPPERS, 8, max_msg_nums=4, invisible_time=INVISIBLE_MS)
        self._ack(broker, 3, self.acked)

    def finish(self, broker: BlockingClient) -> None:
        self._ack(broker, 2, self.acked_last)

    def _ack(self, broker: BlockingClient, count: int, done: set[bytes]) -> None:
        for _ in range(count):
            popped = self._out.pop(0)
            ack(broker, POPPERS, popped)
            done.add(popped.body)

    def check(self, broker: BlockingClient) -> Losses:
        wanted = set(self.names) - self.acked - self.acked_last
        found: Counter[bytes] = Counter()

        def look() -> bool:
            for popped in pop_messages(broker, POPPED, POPPERS, invisible_time=600_000):
                found[popped.body] += 1
                ack(broker, POPPERS, popped)
            return wanted <= found.keys()

        eventually(look, WAIT_S)
        assert found.keys() <= set(self.names)
        return {
            "acked messages again": len(found.keys() & self.acked),
            "messages acked last again": len(found.keys() & self.acked_last),
            "popped messages twice": sum(count - 1 for count in found.values()),
        }


class LongNames(Kind):
    """A pop retry topic with a name of more than 127 bytes: its messages have the layout MESSAGE_MAGIC_CODE_V2."""

    name = "long topic names"
    only_5 = True
    topic, group = f"InterchangeLong_{'t' * 70}", f"interchange_long_{'g' * 70}"
    retry_topic = f"%RETRY%{group}_{topic}"
    bodies = tuple(b"long %d" % number for number in range(5))

    def fill(self, broker: BlockingClient) -> None:
        broker.ask(topic_request(self.topic, 1))
        create_group(broker, self.group)
        for body in self.bodies:
            send_readable(broker, self.topic, body, properties={"KEYS": "long", "TAGS": "long"})
        pop_until(broker, self.topic, self.group, len(self.bodies), invisible_time=1_000)
        wait_for_count(broker, self.retry_topic, len(self.bodies))

    def check(self, broker: BlockingClient) -> Losses:
        reply = pull(broker, self.retry_topic, consumer_group=self.group, tags="long")
        assert SIZE_AND_MAGIC.unpack_from(reply.body)[1] == MAGIC_V2
        assert {message.topic for message in messages(reply)} == {self.retry_topic}
        assert {message.body for message in messages(reply)} == set(self.bodies)
        found = {message.body for message in find(broker, self.retry_topic, "long")}
        return {"keys in long topics": len(set(self.bodies) - found)}
