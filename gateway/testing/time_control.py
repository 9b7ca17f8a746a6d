"""Delivers everything that became due when the clock of a broker was moved ahead."""

from math import inf
from typing import Final

import trio

from gateway.broker.assembly.service import BrokerService

SETTLE_TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.001


async def deliver_due(service: BrokerService) -> None:
    """Let a broker deliver what is due by its clock, and ask producers about open transactions once.

    That is: delayed messages and retries, timer messages, and popped messages whose invisible time is over.
    Raises TimeoutError if it does not come to an end.
    """
    broker = service.broker
    broker.delay_service.earlier.set()
    broker.pop.deadlines.earlier.set()
    if broker.timer_delivery is not None:
        broker.timer_delivery.arrived.set()
    with trio.move_on_after(SETTLE_TIMEOUT_S) as limit:
        await service.check_transactions_once()
        while _has_due(service):  # noqa: ASYNC110 - the tasks that deliver have no event for "nothing left"
            await trio.sleep(POLL_S)
    if limit.cancelled_caught:
        raise TimeoutError(f"messages that became due are not delivered within {SETTLE_TIMEOUT_S:g} s")
    broker.long_polls.answer_marked()


def _has_due(service: BrokerService) -> bool:
    broker, timers = service.broker, service.broker.timer_delivery
    times = [broker.delay_service.next_due_ms(), broker.pop.deadlines.next_due_ms()]
    if timers is not None:
        if timers.behind_messages:
            return True
        times.append(timers.next_due_ms())
    return min((inf if each is None else each for each in times), default=inf) <= broker.clock.now_ms()
