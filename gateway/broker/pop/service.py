"""The parts of pop consumption of one broker, and the task that runs their deadlines."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

import trio
import trio.lowlevel

from gateway.broker.consumers.broker_tables import BrokerTables
from gateway.broker.limits.quotas import Quotas
from gateway.broker.messages.message_services import MessageServices
from gateway.broker.messages.message_writer import MessageWriter
from gateway.broker.pop.ack_handler import AckHandler
from gateway.broker.pop.deadlines import Deadlines
from gateway.broker.pop.ordered_pops import OrderedPopTable
from gateway.broker.pop.pop_handler import PopHandler
from gateway.broker.pop.pop_offsets import PopOffsets
from gateway.broker.pop.queries import PopQueries
from gateway.broker.pop.queue_assignment import RequestModes
from gateway.broker.pop.request_checks import PopRequestChecks
from gateway.broker.pop.reviver import Reviver
from gateway.broker.pop.state import PopState
from gateway.broker.pop.waiting_pops import WaitingPops
from gateway.broker.waiting.wake_signal import WakeSignal
from gateway.config.process import BrokerConfig
from gateway.runtime.config_file import ConfigFile
from gateway.runtime.supervise import TaskSupervisor

MAX_DEADLINES_PER_TURN: Final = 64
"""Largest number of deadlines run in one turn, so that other tasks get their turn."""
MAX_SLEEP_MS: Final = 5000
"""Longest sleep, so that a change of the wall clock, or a suspended machine, is noticed soon."""


@dataclass(slots=True)
class PopService:
    """Pop consumption of one broker."""

    services: MessageServices
    deadlines: Deadlines
    state: PopState
    pop_handler: PopHandler
    ack_handler: AckHandler
    queries: PopQueries
    request_modes: RequestModes

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply changed settings."""
        state = self.state
        state.reviver.config = state.waiting_pops.config = state.pop_offsets.config = config
        state.checks.config = self.pop_handler.config = self.queries.config = config
        self.request_modes.limits = config.limits

    async def run(self, tasks: TaskSupervisor) -> None:
        """Run due callbacks until cancelled, and sleep between deadlines; ``tasks`` records their failures."""
        earlier, clock = self.deadlines.earlier, self.services.store.clock
        while True:
            earlier.clear()
            due = self.deadlines.next_due_ms()
            left_s = inf if due is None else min(MAX_SLEEP_MS, max(0, due - clock.now_ms())) / 1000
            await earlier.wait(left_s)
            await tasks.attempt("revive popped messages", self.run_due)
            await trio.lowlevel.checkpoint()

    def run_due(self) -> None:
        """Run callbacks that are due, at most `MAX_DEADLINES_PER_TURN`, and answer the pulls they woke."""
        try:
            self.deadlines.run_due(self.services.store.clock.now_ms(), MAX_DEADLINES_PER_TURN)
        finally:
            self.services.long_polls.answer_marked()


def build_pop(
    config: BrokerConfig,
    tables: BrokerTables,
    services: MessageServices,
    writer: MessageWriter,
    quotas: Quotas,
    table_file: Callable[[str], ConfigFile],
) -> PopService:
    """Build pop consumption, with the pops that were outstanding when the broker stopped. Raise CorruptionError."""
    store = services.store
    deadlines = Deadlines(WakeSignal())
    waiting_pops = WaitingPops(config, store.clock, services.long_polls)
    ordered_pops = OrderedPopTable(table_file("consumerOrderInfo.json"), store.clock)
    reviver = Reviver(config, tables, services, writer, deadlines)
    reviver.watch_queues(services.long_polls)
    pop_offsets = PopOffsets(config, store, tables.offsets, ordered_pops, waiting_pops, deadlines)
    checks = PopRequestChecks(config, tables, services)
    state = PopState(reviver, ordered_pops, waiting_pops, pop_offsets, checks)
    return PopService(
        services,
        deadlines,
        state,
        PopHandler(config, tables, services, state, quotas),
        AckHandler(tables, services, state),
        PopQueries(config, tables, services, state),
        RequestModes(table_file("messageRequestMode.json"), config.limits),
    )
