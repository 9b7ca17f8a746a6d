"""Passes over the messages that are renewed, on virtual time and with brokers that are slow or silent."""

from types import SimpleNamespace

import pytest
import trio

from gateway.grpc_front.receipts import MessageReceipt
from gateway.grpc_front.renewals import MAX_RENEWAL_S, MAX_RENEWING_BROKERS, HeldMessage, Renewals
from gateway.tests.cluster import simulated
from remoting.requests.pop import ChangeMessageInvisibletimeReply


class Brokers:
    """A cluster of brokers that take ``takes_s`` for each request."""

    def __init__(self, clock, takes_s):
        self.clock = clock
        self.takes_s = takes_s
        self.running = 0
        self.most_running = 0
        self.closed_links = 0

    def broker(self, name):
        return SimpleNamespace(name=name)

    def open_link(self, peer, broker):
        return self

    def close(self, reason):
        self.closed_links += 1

    async def call(self, request, sender, *, timeout_s):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await trio.sleep(self.takes_s)
        finally:
            self.running -= 1
        return ChangeMessageInvisibletimeReply(
            pop_time=self.clock.now_ms(), invisible_time=60_000, revive_qid=0
        )


def renewals_of(brokers, names):
    """Return the renewals of one message that is due on each of these brokers."""
    renewals = Renewals(brokers, {})
    for number, name in enumerate(names):
        receipt = MessageReceipt.parse(f"0 {brokers.clock.now_ms()} 5000 0 0 {name} 0 {number} 0")
        peer = SimpleNamespace(closed=False)
        renewals.hold(HeldMessage("client-1", "GID", "orders", receipt, None, peer, brokers.clock.now_ms()))
    return renewals


@simulated
async def test_slow_brokers_do_not_hold_up_each_other(cluster):
    brokers = Brokers(cluster.clock, takes_s=2.0)
    names = [f"broker-{number}" for number in range(2 * MAX_RENEWING_BROKERS)]
    renewals = renewals_of(brokers, names)
    begin_s = trio.current_time()
    await renewals.renew_due()
    assert trio.current_time() - begin_s == pytest.approx(4.0)
    assert brokers.most_running == MAX_RENEWING_BROKERS
    assert brokers.closed_links == len(names)
    assert len(renewals) == len(names)
    await renewals.renew_due()
    assert brokers.closed_links == len(names), "nothing is due"


@simulated
async def test_a_renewal_ends_in_time_and_the_messages_stay(cluster):
    brokers = Brokers(cluster.clock, takes_s=1000.0)
    renewals = renewals_of(brokers, ["broker-a"] * 3)
    begin_s = trio.current_time()
    await renewals.renew_due()
    assert trio.current_time() - begin_s == pytest.approx(MAX_RENEWAL_S)
    assert brokers.closed_links == 1, "the broker is left alone for the rest of the pass"
    assert len(renewals) == 2, "the first one is visible by now"
