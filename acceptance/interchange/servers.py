"""The servers that fill and read stores, and the copies of a store that they work on."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from acceptance.interchange.kinds import Kind
from acceptance.interchange.plain_kinds import Batched, Continued, Keys, Packed, Plain, Tags, Times
from acceptance.interchange.table_kinds import Offsets, Settings
from acceptance.interchange.waiting_kinds import (
    Delayed,
    LongNames,
    Popped,
    Retried,
    Timed,
    Transacted,
)
from compat_tests.clients.typed import connect
from compat_tests.endpoints.base import LocalEndpoint
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.endpoints.ours import OursEndpoint
from tools.processes import Gateway

SETTINGS = {
    # Small files, so that every kind of file is rolled.
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "mappedFileSizeTimerLog": "4096",
    "maxHashSlotNum": "500",
    "maxIndexNum": "6000",
    # Half messages are asked about at once, and for as long as a test takes.
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
    "transactionOpBatchInterval": "100",
    "transactionCheckMax": "1000",
    "recallMessageEnable": "true",
    # The intervals in which tables are saved say how much a kill may cost. The official server's are as long as ours.
    "flushConsumerOffsetInterval": "1000",
    "flushDelayOffsetInterval": "1000",
    "timerFlushIntervalMs": "1000",
}


def ours(directory: Path, namesrv: str) -> LocalEndpoint:
    return OursEndpoint(SETTINGS, directory)


def official(directory: Path, namesrv: str) -> LocalEndpoint:
    return OfficialEndpoint(SETTINGS, directory, namesrv=namesrv)


def official_with_extensions(directory: Path, namesrv: str) -> LocalEndpoint:
    settings = {**SETTINGS, "enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": "20000"}
    return OfficialEndpoint(settings, directory, namesrv=namesrv)


def official_4_9(directory: Path, namesrv: str) -> LocalEndpoint:
    return OfficialEndpoint(SETTINGS, directory, profile="server-4.9", namesrv=namesrv)


SERVERS: dict[str, Callable[[Path, str], LocalEndpoint]] = {
    "ours": ours,
    "official": official,
    "official with extensions": official_with_extensions,
    "official 4.9": official_4_9,
}


@contextmanager
def running(name: str, directory: Path) -> Iterator[LocalEndpoint]:
    """Run a server on the store in `directory`/store; official ones beside a namesrv of ours, which starts faster."""
    if name == "ours":
        with ours(directory, "") as endpoint:
            yield endpoint
        return
    with (
        Gateway(directory / "namesrv", "--memory", command="namesrv") as namesrv,
        SERVERS[name](directory, namesrv.namesrv) as endpoint,
    ):
        yield endpoint


@dataclass(frozen=True)
class FilledStore:
    """A store that one server has filled, in `directory`/kill and `directory`/stop as it ended, and what is in it."""

    directory: Path
    kinds: Sequence[Kind]

    def copy_to(self, directory: Path, ending: str) -> None:
        """Copy the store for one reader, which changes it."""
        shutil.copytree(self.directory / ending / "store", directory / "store")


def make_kinds(server: str, store: Path) -> list[Kind]:
    """Return the kinds of messages that a server is filled with, in the order in which they are written."""
    is_5 = "4.9" not in server
    plain, batched = Plain(), Batched()
    settings = Settings(store, {"message.type": "FIFO"} if is_5 else {})
    kinds: list[Kind] = [
        settings,
        plain,
        Tags(plain),
        Keys(plain, store),
        Times(plain),
        batched,
        Packed(),
        LongNames(),
    ]
    kinds += [
        Delayed(),
        Timed(),
        Transacted(),
        Retried(),
        Popped(),
        Offsets(store),
        Continued(plain, batched),
    ]
    return [kind for kind in kinds if is_5 or not kind.only_5]


def fill(server: str, directory: Path) -> FilledStore:
    """Let a server fill a store; keep it as SIGKILL leaves it, then as an orderly stop leaves it.

    The copy of the killed store is taken while the process is halted (SIGSTOP): its files then hold what they would
    hold after SIGKILL at that moment, and the same fill can still end in order.
    """
    kinds = make_kinds(server, directory / "store")
    with running(server, directory) as endpoint:
        with connect(endpoint.broker) as broker:
            for kind in kinds:
                kind.fill(broker)
            for kind in kinds:
                kind.schedule(broker)
            for kind in kinds:
                kind.wait_for_scheduled(broker)
            for kind in kinds:
                kind.finish(broker)
        with halted(endpoint):
            shutil.copytree(endpoint.store, directory / "kill" / "store")
        endpoint.stop()
        shutil.copytree(endpoint.store, directory / "stop" / "store")
    return FilledStore(directory, kinds)


@contextmanager
def halted(endpoint: LocalEndpoint) -> Iterator[None]:
    """Halt a server's broker process, which has a process group of its own, until all of its threads stand still."""
    group = endpoint.children[-1].pid
    os.killpg(group, signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, group, os.WSTOPPED | os.WNOWAIT)
        yield
    finally:
        os.killpg(group, signal.SIGCONT)
