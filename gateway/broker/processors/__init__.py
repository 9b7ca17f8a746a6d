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
    offset_preserving,
    offsets,
    pop,
    pull,
    query,
    queue_locks,
    replication,
    send,
    staged_batches,
    storage_engines,
    timers,
    topics,
    transactions,
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
        offset_preserving,
        offsets,
        pop,
        pull,
        query,
        queue_locks,
        replication,
        send,
        staged_batches,
        storage_engines,
        timers,
        topics,
        transactions,
    )
    return HandlerTable[Broker]().include(*(area.handlers for area in areas))
