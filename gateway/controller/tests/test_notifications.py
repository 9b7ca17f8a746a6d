"""Notifications: what brokers get, and that a newer one overtakes."""

import trio
from trio.testing import MockClock

from codec.command import Command
from gateway.controller.broker_set import BrokerSet
from gateway.controller.notifications import Notifications, deliver_command
from remoting.errors import RemotingClosed
from remoting.requests.ha import NotifyBrokerRoleChanged

FIRST = BrokerSet("C", "a").with_replica(1, "h:1", "x").with_replica(2, "h:2", "y").with_master(1)


def test_a_broker_gets_master_epochs_and_replicas_in_sync_signed() -> None:
    commands: list[tuple[str, Command]] = []

    async def deliver(address: str, command: Command) -> None:
        commands.append((address, command))

    def sign(command: Command) -> None:
        command.ext["Signature"] = "s"

    async def send() -> Notifications:
        notifications = Notifications(sign, deliver)
        async with trio.open_nursery() as nursery:
            notifications.send(nursery, "h:2", FIRST)
        return notifications

    notifications = trio.run(send)
    ((address, command),) = commands
    request = NotifyBrokerRoleChanged.from_command(command)
    assert (address, command.ext["Signature"]) == ("h:2", "s")
    assert (request.master_broker_id, request.master_address) == (1, "h:1")
    assert (request.master_epoch, request.sync_state_set_epoch) == (1, 1)
    assert request.data is not None
    assert request.data.sync_state_set == [1]
    assert (notifications.sent, notifications.failed) == (1, 0)


def test_a_newer_election_overtakes_a_notification_that_hangs() -> None:
    epochs: list[int] = []

    async def deliver(address: str, command: Command) -> None:
        epoch = int(command.ext["masterEpoch"])
        if epoch == 1:
            await trio.sleep_forever()
        epochs.append(epoch)

    async def send() -> None:
        notifications = Notifications(None, deliver)
        start_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            notifications.send(nursery, "h:2", FIRST)
            await trio.sleep(0.1)
            notifications.send(nursery, "h:2", FIRST.with_master(2))
        assert trio.current_time() - start_s < 1
        assert epochs == [2]

    trio.run(send, clock=MockClock(autojump_threshold=0))


def test_a_broker_that_cannot_be_reached_is_counted() -> None:
    async def fail(address: str, command: Command) -> None:
        if address == "hangs":
            await trio.sleep_forever()
        raise RemotingClosed("gone")

    async def send() -> Notifications:
        notifications = Notifications(None, fail)
        async with trio.open_nursery() as nursery:
            notifications.send(nursery, "h:2", FIRST)
            notifications.send(nursery, "hangs", FIRST)
        return notifications

    assert trio.run(send, clock=MockClock(autojump_threshold=0)).failed == 2


def test_text_that_is_no_address_is_a_failure_and_nothing_else() -> None:
    async def send() -> Notifications:
        notifications = Notifications(None, deliver_command)
        async with trio.open_nursery() as nursery:
            notifications.send(nursery, "nonsense", FIRST)
            notifications.send(nursery, "127.0.0.1:1", FIRST)
        return notifications

    assert trio.run(send).failed == 2


def test_an_address_that_no_resolver_takes_does_not_end_the_controller() -> None:
    async def send() -> Notifications:
        notifications = Notifications(None, deliver_command)
        async with trio.open_nursery() as nursery:
            for host in ("a..b", "x" * 64 + ".example", "\ud800", "a\0b"):
                notifications.send(nursery, f"{host}:10911", FIRST)
        return notifications

    assert trio.run(send).failed == 4


def test_a_master_address_that_cannot_be_signed_is_a_failure_and_nothing_else() -> None:
    def sign(command: Command) -> None:
        command.ext["masterAddress"].encode()

    async def send() -> Notifications:
        notifications = Notifications(sign, deliver_command)
        async with trio.open_nursery() as nursery:
            notifications.send(nursery, "127.0.0.1:1", FIRST.with_address(1, "\ud800:1"))
        return notifications

    assert trio.run(send).failed == 1
