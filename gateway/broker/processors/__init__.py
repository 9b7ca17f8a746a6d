"""What a broker answers: one module of handlers per area, and all of them together."""

from gateway.broker.processors import (
    admin,
    assignment,
    client,
    connections,
    groups,
    locks,
    messages,
    mirroring,
    offsets,
    pop,
    progress,
    query,
    replies,
    send_back,
    staging,
    timers,
    topics,
    transactions,
)
from gateway.broker.processors.context import Broker
from remoting.routes import Routes


def all_routes() -> Routes[Broker]:
    """Every handler of a broker."""
    areas = (
        admin,
        assignment,
        client,
        connections,
        groups,
        locks,
        messages,
        mirroring,
        offsets,
        pop,
        progress,
        query,
        replies,
        send_back,
        staging,
        timers,
        topics,
        transactions,
    )
    return Routes[Broker]().include(*(area.routes for area in areas))
