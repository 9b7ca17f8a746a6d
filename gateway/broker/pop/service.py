"""Puts the parts of pop consumption together and runs what is due. Not responsible for what they do."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

import trio
import trio.lowlevel

from gateway.broker.advertised_hosts import Hosts
from gateway.broker.consumer_offsets import ConsumerOffsets
from gateway.broker.group_commit import GroupCommit
from gateway.broker.group_table import GroupTable
from gateway.broker.long_poll import LongPolls
from gateway.broker.message_writer import Putter
from gateway.broker.pop.ack_handler import PopAcks
from gateway.broker.pop.deadlines import Agenda
from gateway.broker.pop.ordered_pops import OrderTable
from gateway.broker.pop.pop_handler import Popper
from gateway.broker.pop.pop_offsets import Positions
from gateway.broker.pop.queries import PopLooks
from gateway.broker.pop.request_checks import PopChecks
from gateway.broker.pop.request_modes import RequestModes
from gateway.broker.pop.reviver import Reviver
from gateway.broker.pop.waiting_pops import PopWaits
from gateway.broker.quotas import Quotas
from gateway.broker.topic_table import TopicTable
from gateway.broker.traffic_stats import BrokerStats
from gateway.config.process import BrokerConfig
from gateway.runtime.config_file import ConfigFile
from gateway.runtime.tasks import once
from storage.clock import Clock
from storage.store import MessageStore

MOST_AT_ONCE: Final = 64
"""Appointments kept in one turn, so that other work gets its own."""
CLOCK_LOOK_S: Final = 5.0
"""How soon a wall clock that was set, or a machine that slept, counts."""


@dataclass(slots=True)
class PopParts:
    """Pop consumption of one broker."""

    clock: Clock
    long_polls: LongPolls
    agenda: Agenda
    reviver: Reviver
    orders: OrderTable
    waits: PopWaits
    positions: Positions
    checks: PopChecks
    popper: Popper
    acks: PopAcks
    looks: PopLooks
    modes: RequestModes

    def reconfigure(self, config: BrokerConfig) -> None:
        """Goes by changed settings from now on."""
        self.reviver.config = self.waits.config = self.positions.config = config
        self.checks.config = self.popper.config = self.looks.config = config

    async def run(self) -> None:
        """Does what is due until cancelled; sleeps until then."""
        while True:
            earlier = trio.Event()
            self.agenda.on_earlier = earlier.set
            due = self.agenda.next_due_ms()
            left_s = inf if due is None else min(CLOCK_LOOK_S, max(0.0, (due - self.clock.now_ms()) / 1000))
            with trio.move_on_after(left_s):
                await earlier.wait()
            await once("revive popped messages", self.run_due)
            await trio.lowlevel.checkpoint()

    def run_due(self) -> None:
        """Does what is due now, some of it, and answers who waited for it."""
        try:
            self.agenda.run_due(self.clock.now_ms(), MOST_AT_ONCE)
        finally:
            self.long_polls.wake()


def build_pop(
    config: BrokerConfig,
    clock: Clock,
    store: MessageStore,
    topics: TopicTable,
    groups: GroupTable,
    offsets: ConsumerOffsets,
    put: Putter,
    long_polls: LongPolls,
    hosts: Hosts,
    commit: GroupCommit,
    stats: BrokerStats,
    quotas: Quotas,
    table_file: Callable[[str], ConfigFile],
) -> PopParts:
    """All parts, with what was out when the broker ended. Raises CorruptionError."""
    agenda = Agenda()
    waits = PopWaits(config, clock, long_polls, topics)
    orders = OrderTable(table_file("consumerOrderInfo.json"), clock)
    reviver = Reviver(config, clock, store, topics, groups, offsets, put, hosts, agenda)
    reviver.watch(long_polls)
    positions = Positions(config, store, offsets, orders, waits, agenda)
    checks = PopChecks(config, clock, store, topics, groups, hosts)
    popper = Popper(
        config,
        clock,
        store,
        topics,
        offsets,
        positions,
        orders,
        reviver,
        waits,
        checks,
        commit,
        stats,
        quotas,
    )
    acks = PopAcks(clock, store, offsets, positions, orders, reviver, waits, checks)
    modes = RequestModes(table_file("messageRequestMode.json"))
    looks = PopLooks(config, clock, store, topics, positions, orders, waits, checks, stats)
    return PopParts(
        clock, long_polls, agenda, reviver, orders, waits, positions, checks, popper, acks, looks, modes
    )
