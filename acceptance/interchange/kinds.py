"""The `Kind` of message: what it writes, and what the next server must find.

Time matters to a killed server: what it has written to its files, and what it only remembers. So each kind writes
twice: `fill` long enough before the end that everything is on disk by every server's promise, and `finish` right
before it.
"""

from collections import Counter
from collections.abc import Iterable

from acceptance.workload import read_queue
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.offsets import GetMaxOffset

WAIT_S = 120.0
Losses = dict[str, int]
"""Numbers of things that a reader lacks or has twice, by name. Losses that nothing excuses are AssertionErrors."""


class Kind:
    """One kind of message. Create one for each store that is filled."""

    name = ""
    only_5 = False
    """True if a 4.9 broker knows nothing of it."""

    def fill(self, broker: BlockingClient) -> None:
        """Write messages, and wait until the effects that the kind promises to be kept have happened."""

    def schedule(self, broker: BlockingClient) -> None:
        """Write messages that the server has to do something with right before it ends."""

    def wait_for_scheduled(self, broker: BlockingClient) -> None:
        """Wait until the server has done that."""

    def finish(self, broker: BlockingClient) -> None:
        """Write more, right before the server ends."""

    def check(self, broker: BlockingClient) -> Losses:
        """Look for everything on the server that now has the store."""
        raise NotImplementedError


def count_messages(broker: BlockingClient, topic: str, queue_id: int = 0) -> int:
    """Return the end of a queue; 0 if there is no such topic."""
    try:
        return broker.ask(GetMaxOffset(topic=topic, queue_id=queue_id)).offset
    except RequestError:
        return 0


def wait_for_count(broker: BlockingClient, topic: str, count: int, queue_id: int = 0) -> None:
    eventually(lambda: count_messages(broker, topic, queue_id) >= count, WAIT_S)


def bodies_in(broker: BlockingClient, topic: str, queue_id: int = 0) -> Counter[str]:
    """Return how often each body is in a queue."""
    return Counter(message.body.decode() for message in read_queue(broker, topic, queue_id))


def wait_for_bodies(broker: BlockingClient, topic: str, wanted: Iterable[str]) -> Counter[str]:
    """Wait until queue 0 of a topic holds all of these bodies, and return how often it holds each."""
    missing = set(wanted)

    def look() -> Counter[str] | None:
        if count_messages(broker, topic) < len(missing):
            return None
        found = bodies_in(broker, topic)
        return found if missing <= found.keys() else None

    return eventually(look, WAIT_S, every_s=0.2)


def surplus(found: Counter[str], names: Iterable[str]) -> int:
    """Return how many copies of these bodies there are beyond the first ones."""
    return sum(max(0, found[name] - 1) for name in names)
