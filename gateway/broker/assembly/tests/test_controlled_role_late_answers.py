"""A slave asks its master for the HA port, and another role, or other parts, come before the answer."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gateway.broker.assembly.controlled_role import ControlledRoles
from gateway.broker.replication.master_lookup import Master
from gateway.config.replication import ControlledRole, Role
from remoting.requests.ha import ExchangeBrokerHaInfoReply
from remoting.tests.virtual import settle, virtual

MASTER = "10.0.1.2:10911"
FOUND = Master(("10.0.1.2", 10912), ("10.0.1.2", 10911))


class PlayedParts:
    """The parts of a slave, with the masters that they were told to follow."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(role=Role.SLAVE, broker_id=1)
        self.followed: list[tuple[Master | None, str]] = []
        self.replication = SimpleNamespace(follow_master=self.follow, slave=SimpleNamespace())

    def follow(self, master: Master | None, address: str) -> None:
        self.followed.append((master, address))


class PlayedService:
    """A service whose changes of the parts never end."""

    is_open, fence_reason, relay = True, "", None

    def __init__(self) -> None:
        self.broker = PlayedParts()

    def hold_requests(self, served: object) -> None:
        """Nothing comes."""

    def pass_on_to(self, relay: object) -> None:
        """Nothing is passed on."""

    async def rebuild(self, change_config: object, *, needed: bool) -> None:
        await trio.sleep_forever()


class PlayedMaster:
    """The connection to a master, which answers when ``gate`` is set."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.sign = None

    @asynccontextmanager
    async def dial(self, host: str, port: int) -> AsyncIterator["PlayedMaster"]:
        yield self

    async def ask(self, request: object, timeout_s: float, sign: object) -> ExchangeBrokerHaInfoReply:
        await self.gate.wait()
        return ExchangeBrokerHaInfoReply(master_ha_address="10.0.1.2:10912", master_address=MASTER)


def go_on(roles: ControlledRoles, service: Any, nursery: trio.Nursery) -> None:
    """Nothing changes."""


def lead(roles: ControlledRoles, service: Any, nursery: trio.Nursery) -> None:
    nursery.start_soon(roles.lead, ControlledRole(1, 2, frozenset({1, 2}), 2))


def replace_parts(roles: ControlledRoles, service: Any, nursery: trio.Nursery) -> None:
    service.broker = PlayedParts()


@pytest.mark.parametrize(
    ("change", "followed"),
    [
        (go_on, [(None, MASTER), (FOUND, MASTER)]),
        (lead, [(None, MASTER), (None, "")]),
        (replace_parts, []),
    ],
)
@virtual
async def test_an_answer_counts_for_the_slave_that_asked(
    change: Callable[[ControlledRoles, Any, trio.Nursery], None], followed: list[object]
) -> None:
    service: Any = PlayedService()
    links: Any = PlayedMaster()
    roles = ControlledRoles(service, links)
    async with trio.open_nursery() as nursery:
        await roles.follow(ControlledRole(1, 1, frozenset({1, 2}), 1), MASTER)
        nursery.start_soon(roles._ask_master, MASTER, service.broker.replication.slave)
        await settle()
        change(roles, service, nursery)
        await settle()
        links.gate.set()
        await settle()
        assert service.broker.followed == followed
        nursery.cancel_scope.cancel()
