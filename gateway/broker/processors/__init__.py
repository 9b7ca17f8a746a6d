"""Request handlers of a broker: one module per area, combined by `all_handlers`."""

from gateway.broker.broker import Broker
from gateway.broker.processors import (
    accounts,
    admin,
    assignment,
    connections,
    consume_progress,
    groups,
    heartbeats,
    locks,
    offset_preserving,
    offsets,
    pop,
    pull,
    query,
    replicated_tables,
    replication,
    send,
    staged_batches,
    storage_engines,
    timers,
    topics,
    transaction,
)
from remoting.handler_table import HandlerTable


def all_handlers() -> HandlerTable[Broker]:
    """Return every handler of a broker."""
    areas = (
        accounts,
        admin,
        assignment,
        connections,
        consume_progress,
        groups,
        heartbeats,
        locks,
        offset_preserving,
        offsets,
        pop,
        pull,
        query,
        replicated_tables,
        replication,
        send,
        staged_batches,
        storage_engines,
        timers,
        topics,
        transaction,
    )
    return HandlerTable[Broker]().include(*(area.handlers for area in areas))
