"""Stores change hands between our server and official ones: every kind of message, after a stop and after SIGKILL.

Each writer is filled once; every reader works on a copy of its store. Laws that a kill cannot break are assertions of
the kinds (`interchange/*_kinds.py`); the losses that it may cause are in `COSTS_OF_A_KILL`.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from acceptance.interchange.kinds import Kind
from acceptance.interchange.servers import FilledStore, fill, make_kinds, running
from compat_tests.clients.typed import connect
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from remoting.blocking import BlockingClient

pytestmark = pytest.mark.both_servers


class HandOver(NamedTuple):
    """The server that wrote a store, how it ended, and the server that opens the store."""

    writer: str
    ending: str
    reader: str


HAND_OVERS = (
    HandOver("ours", "kill", "official"),
    HandOver("ours", "stop", "official"),
    HandOver("ours", "kill", "ours"),
    HandOver("official 4.9", "kill", "ours"),
    HandOver("official 4.9", "stop", "ours"),
    HandOver("official", "kill", "ours"),
    HandOver("official", "stop", "ours"),
    HandOver("official with extensions", "kill", "ours"),
    HandOver("official with extensions", "stop", "ours"),
    # The measure for the others: an official broker that opens its own store.
    HandOver("official", "kill", "official"),
)
WRITERS = dict.fromkeys(hand_over.writer for hand_over in HAND_OVERS)

COSTS_OF_A_KILL = {
    "delayed messages": {"recent messages twice"},
    "timer messages": {"recent messages twice", "late messages twice"},
    "transactions": {"transactions ended last asked about", "committed messages twice"},
    "consumer offsets": {"offsets committed last"},
}
"""Losses that SIGKILL may cause, by kind: of work since a server last wrote down its progress, at most a second."""
SPARED_BY_OUR_READER = {
    "delayed messages": {"recent messages twice"},
    "timer messages": {"late messages twice"},
}
"""Those that do not occur if our server opens the store, whoever wrote it."""
SPARED_BY_OURS_ALONE = {
    "timer messages": {"recent messages twice"},
    "transactions": {"committed messages twice"},
    "consumer offsets": {"offsets committed last"},
}
"""Those that do not occur if our server opens its own store."""
MORE_COSTS_OF_OFFICIAL_ALONE = {
    "keys": {"old keys", "old unique keys", "messages of a shared key"},
    "pops": {"messages acked last again"},
}
"""Further losses of an official broker that opens its own store: it deletes the last index file and indexes only
messages of the last commit log files again, and its timer may deliver an ack before the checkpoint of its pop."""


COSTS_OF_AN_OFFICIAL_STOP = {"transactions": {"transactions ended last asked about"}}
"""An official broker that stops does not write the ends of transactions that it has collected in the last 3 s.

Source: TransactionalOpBatchService, 5.4.0.
"""


def excused(hand_over: HandOver, kind: str) -> set[str]:
    """Return the names of losses of a kind that a hand-over may cause; after a stop of ours there is none."""
    if hand_over.ending == "stop":
        return set() if hand_over.writer == "ours" else COSTS_OF_AN_OFFICIAL_STOP.get(kind, set())
    costs = set(COSTS_OF_A_KILL.get(kind, ()))
    if hand_over.reader == "ours":
        costs -= SPARED_BY_OUR_READER.get(kind, set())
    if hand_over.writer == hand_over.reader == "ours":
        costs -= SPARED_BY_OURS_ALONE.get(kind, set())
    if hand_over.writer == hand_over.reader == "official":
        costs |= MORE_COSTS_OF_OFFICIAL_ALONE.get(kind, set())
    return costs


@dataclass(frozen=True)
class OpenedStore:
    """A store that its reader has open, and the kinds of messages in it."""

    hand_over: HandOver
    broker: BlockingClient
    kinds: dict[str, Kind]


@pytest.fixture(scope="module")
def fills(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[FilledStore]]]:
    """The fills of all writers, side by side."""
    directory = tmp_path_factory.mktemp("fills")
    with ThreadPoolExecutor(len(WRITERS)) as executor:
        yield {
            writer: executor.submit(fill, writer, directory / writer.replace(" ", "-")) for writer in WRITERS
        }


@pytest.fixture(scope="module", params=HAND_OVERS, ids=" ".join)
def opened(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    fills: dict[str, Future[FilledStore]],
) -> Iterator[OpenedStore]:
    hand_over: HandOver = request.param
    try:
        filled = fills[hand_over.writer].result(timeout=300)
        directory = tmp_path_factory.mktemp("reader")
        filled.copy_to(directory, hand_over.ending)
        with (
            running(hand_over.reader, directory) as endpoint,
            connect(endpoint.broker, timeout_s=30) as broker,
        ):
            yield OpenedStore(hand_over, broker, {kind.name: kind for kind in filled.kinds})
    except Unavailable as missing:
        skip_or_fail(str(missing))


@pytest.mark.parametrize("kind", [kind.name for kind in make_kinds("official", Path())])
def test_nothing_is_lost(opened: OpenedStore, kind: str) -> None:
    """The next server has everything, except for the losses that a kill may cause."""
    if kind not in opened.kinds:
        pytest.skip(f"{opened.hand_over.writer} has no {kind}")
    losses = opened.kinds[kind].check(opened.broker)
    found = {name: count for name, count in losses.items() if count}
    assert found.keys() <= excused(opened.hand_over, kind), found
