"""Rounds of faults: each begins and ends with a cluster whose brokers are all in sync, and is judged at its end."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from codec.errors import MessageFormatError
from compat_tests.clients.command_driver import StockClientError
from compat_tests.server import eventually
from remoting.errors import REQUEST_FAILURES
from tools.failovers.cluster import BROKER_GROUPS, BROKER_MACHINES, CONTROLLER_KINDS, FailoverCluster
from tools.failovers.faults import FAULTS_BY_NAME, ClusterFault
from tools.failovers.network import Machines, open_machines
from tools.failovers.timeline import ANY, count_master_changes, first_accept_s, longest_pause_s
from tools.failovers.traffic import ClientTraffic
from tools.pairings.members import OFFICIAL, read_topic

log = logging.getLogger(__name__)

SETTLE_S: Final = 1.0
"""Time of undisturbed sending before a fault and at the end of a round."""
REPLACED_S: Final = 120.0
"""Longest wait for another master."""
IN_SYNC_S: Final = 150.0
SAME_END_S: Final = 60.0
TROUBLE: Final = (AssertionError, RuntimeError, StockClientError, MessageFormatError, *REQUEST_FAILURES)


@dataclass(slots=True)
class RoundResult:
    """One round of a fault in a cluster. ``problems`` are broken laws, in words.

    ``master``: the kind of the broker that was master before. ``writable_s``: time from the fault to the first accepted
    send that began after it, by another broker if the fault replaces the master; None if there was none. ``pauses_s``:
    the longest time without an accepted send, by client. ``in_sync_s``: time from the end of the fault until all
    brokers were in sync.
    """

    brokers: str
    controllers: str
    fault: str
    writable_s: float | None = None
    pauses_s: dict[str, float] = field(default_factory=dict)
    in_sync_s: float | None = None
    accepted: int = 0
    elections: int = 0
    problems: list[str] = field(default_factory=list)
    master: str = ""

    @property
    def is_official(self) -> bool:
        """True if the problems are not those of a part of ours.

        An official master that hangs or is cut off goes on acknowledging after another one is elected.
        """
        if (self.brokers, self.controllers) == ("official", "official"):
            return True
        fault = FAULTS_BY_NAME.get(self.fault)
        return fault is not None and fault.is_master_alive and self.master == OFFICIAL.name


class ClusterStopped(Exception):
    """A cluster did not come back after a fault; the text says from what."""


class Rounds:
    """A running cluster with its clients, and the results of its rounds."""

    def __init__(
        self,
        brokers: str,
        controllers: str,
        clients: Sequence[str],
        directory: Path,
        stack: ExitStack,
        settings: dict[str, str] | None = None,
    ) -> None:
        self._brokers, self._controllers = brokers, controllers
        kind = CONTROLLER_KINDS[controllers]
        machines: Machines = open_machines(BROKER_MACHINES + kind.machines)
        stack.enter_context(machines)
        self.cluster = FailoverCluster(BROKER_GROUPS[brokers], kind, machines, directory, stack, settings)
        self.cluster.start()
        self.traffic = ClientTraffic(self.cluster, tuple(clients), stack)
        self._first_epoch = self._epoch()
        self._counts: dict[str, int] = {}

    def _epoch(self) -> int:
        return int(eventually(lambda: self.cluster.controllers.replicas().master_epoch, 60))

    def run(self, fault: ClusterFault) -> RoundResult:
        """Let a fault happen, end it, wait until all brokers are in sync, and judge what clients saw."""
        result = RoundResult(self._brokers, self._controllers, fault.name)
        epoch = self._epoch()
        try:
            with self.traffic.running():
                self._disturb(fault, result)
        except TROUBLE as trouble:
            result.problems.append(f"stuck: {trouble}")
            return result
        result.elections = self._epoch() - epoch
        try:
            result.problems += self._judge()
        except TROUBLE as trouble:
            result.problems.append(f"cannot be read: {trouble}")
        return result

    def _disturb(self, fault: ClusterFault, result: RoundResult) -> None:
        history, master = self.traffic.history, self.cluster.master()
        result.master = master.kind.name
        time.sleep(SETTLE_S)
        begun_s = time.monotonic()
        with ExitStack() as end:
            fault.inject(self.cluster, master, end)
            if fault.replaces_master:

                def find_moment() -> float | None:
                    return first_accept_s(history.accepted(begun_s), begun_s, not_by=master.address)

                try:
                    result.writable_s = eventually(find_moment, REPLACED_S) - begun_s
                    time.sleep(SETTLE_S)
                except AssertionError:
                    result.problems.append(f"no other master within {REPLACED_S:.0f} s")
            else:
                time.sleep(fault.hold_s)
        self.cluster.controllers.wait_ready()
        result.in_sync_s = self.cluster.wait_in_sync(IN_SYNC_S)
        time.sleep(SETTLE_S)
        ended_s, accepted = time.monotonic(), history.accepted(begun_s)
        if not fault.replaces_master:
            moment = first_accept_s(accepted, begun_s)
            result.writable_s = None if moment is None else longest_pause_s(accepted, begun_s, ended_s)
        result.accepted = len(accepted)
        for client in (ANY, *history.clients()):
            result.pauses_s[client] = longest_pause_s(accepted, begun_s, ended_s, client)

    def _judge(self) -> list[str]:
        """Return the laws that are broken now, while nobody sends."""
        problems = []
        try:
            self.cluster.wait_same_end(SAME_END_S)
        except AssertionError as trouble:
            problems.append(f"the logs have different ends: {trouble}")
        difference = self.cluster.find_difference()
        if difference is not None:
            problems.append(difference)
        history, messages = self.traffic.history, self.traffic.messages
        contents = read_topic(self.cluster.master().address)
        changes, elections = count_master_changes(history.accepted()), self._epoch() - self._first_epoch
        judgement = history.judge(contents)
        history.forget_lost(contents)
        lost = {
            "acknowledged and lost": judgement.missing + judgement.altered,
            "read and gone": messages.count_vanished(contents),
        }
        problems += [f"{count} {law}" for law, count in lost.items() if count]
        # These counts are those of all rounds so far.
        counts = {
            "gaps": judgement.gaps,
            "out of order": judgement.out_of_order,
            "unknown": judgement.unknown,
            "offsets acknowledged for two messages": judgement.conflicts,
            "offsets read with two messages": messages.conflicts,
            "changes of the accepting broker without an election": max(0, changes - elections),
            "tracebacks in logs of ours": self.cluster.count_tracebacks(),
        }
        for law, count in counts.items():
            if count > self._counts.get(law, 0):
                problems.append(f"{count - self._counts.get(law, 0)} {law}")
                self._counts[law] = count
        return problems


def run_rounds(
    rounds: Rounds, faults: Sequence[ClusterFault], count: int, deadline_s: float
) -> Iterator[RoundResult]:
    """Yield the results of ``count`` rounds of each fault that the cluster can have, until a cluster is stuck.

    Faults take turns. No round begins after ``deadline_s`` (monotonic).
    """
    possible = [fault for fault in faults if fault.is_possible(rounds.cluster)]
    for number in range(count):
        for fault in possible:
            if time.monotonic() >= deadline_s:
                return
            result = rounds.run(fault)
            log.info(
                "%s under %s, %s %d: writable after %s s, in sync after %s s%s",
                result.brokers,
                result.controllers,
                fault.name,
                number + 1,
                "-" if result.writable_s is None else f"{result.writable_s:.1f}",
                "-" if result.in_sync_s is None else f"{result.in_sync_s:.0f}",
                "".join(f"; {problem}" for problem in result.problems),
            )
            yield result
            if any(problem.startswith("stuck") for problem in result.problems):
                return
