"""Roles of brokers: who is master of each name, how far slaves are behind, and changes of that."""

from collections.abc import Iterable
from typing import Any, Final

from codec.constants import MASTER_ID, ResponseCode
from gateway.admin.client import AdminClient
from gateway.admin.errors import AdminError, NotFound, NotReached, Refused
from remoting.requests.roles import BrokerRoleStatus, ChangeBrokerRole, GetBrokerRole, HandOverBroker

SLAVE: Final = "SLAVE"
CHANGE_TIMEOUT_S: Final = 120.0
"""Longest time of a change: a store that was not closed cleanly is recovered first."""
MAX_CATCH_UP_S: Final = 10.0
COPYING: Final = "copying"
OFFICIAL: Final = "official"
"""State of a broker that does not know the request for its role."""


class RoleChangeRefused(AdminError):
    """A change that would leave no master, or two; the text says what to do."""


def list_roles(client: AdminClient) -> list[dict[str, Any]]:
    """Return a row for each registered broker.

    One that cannot be asked, is fenced, or does not copy has a ``problem``. An official one only has a state.
    """
    rows = []
    for name, data in sorted(client.cluster.broker_addr_table.items()):
        for broker_id, address in sorted(data.broker_addrs.items()):
            row: dict[str, Any] = {"broker": name, "id": broker_id, "address": address, "problem": ""}
            row["role"] = "master" if broker_id == MASTER_ID else "slave"
            try:
                row |= _describe(read_role(client, address))
            except RoleChangeRefused:
                row["state"] = OFFICIAL
            except AdminError as error:
                row["problem"] = str(error)
            rows.append(row)
    return rows


def _describe(status: BrokerRoleStatus) -> dict[str, Any]:
    return {
        "id": status.broker_id,
        "role": status.broker_role,
        "state": status.state,
        "serving": status.is_serving,
        "logStart": status.log_start,
        "logEnd": status.log_end,
        "behindBytes": None if status.behind_bytes < 0 else status.behind_bytes,
        "master": status.master_address,
        "slaves": [
            {
                "address": slave.address,
                "acknowledged": slave.acknowledged,
                "behindBytes": slave.behind_bytes,
            }
            for slave in status.slaves
        ],
        "problem": status.reason or _describe_idle_slave(status),
    }


def _describe_idle_slave(status: BrokerRoleStatus) -> str:
    """Return the state of a slave that does not copy yet, such as "comparing"; "" for any other broker."""
    is_idle = status.broker_role == SLAVE and status.is_serving and status.state != COPYING
    return status.state if is_idle else ""


def read_role(client: AdminClient, address: str) -> BrokerRoleStatus:
    """Ask a broker for its role. Raises RoleChangeRefused for an official broker."""
    try:
        return client.ask(address, GetBrokerRole()).data
    except Refused as refused:
        if refused.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise RoleChangeRefused(
            f"{address} is an official broker, or an older one of this project: it does not say its role"
        ) from refused


def promote(
    client: AdminClient, address: str, *, broker_role: str | None = None, force: bool = False
) -> BrokerRoleStatus:
    """Make a slave the master of its name, and return its status.

    A master that is alive hands over. With ``force`` the slave takes over without asking it. ``broker_role`` is the
    kind of master, by default that of the former master, and ASYNC_MASTER if that is unknown. Raises RoleChangeRefused.
    """
    slave = read_role(client, address)
    if slave.broker_role == SLAVE and slave.is_serving and not force:
        master = slave.master_address or _registered_master(client, slave.broker_name)
        if master and master != address and _is_alive(client, master):
            client.ask(
                master,
                HandOverBroker(slave_address=address, timeout_millis=round(MAX_CATCH_UP_S * 1000)),
                timeout_s=CHANGE_TIMEOUT_S,
            )
            slave = read_role(client, address)
            if broker_role in (None, slave.broker_role):
                return slave
    former_role = slave.master_role if slave.broker_role == SLAVE else slave.broker_role
    request = ChangeBrokerRole(
        broker_role=broker_role or former_role or "ASYNC_MASTER",
        broker_id=MASTER_ID,
        force=force,
    )
    return client.ask(address, request, timeout_s=CHANGE_TIMEOUT_S).data


def _is_alive(client: AdminClient, master: str) -> bool:
    """Tell whether a master can hand over. Raises RoleChangeRefused for an official one."""
    try:
        status = read_role(client, master)
    except NotReached:
        return False
    except RoleChangeRefused as error:
        raise RoleChangeRefused(
            f"the master at {master} is an official broker, which cannot hand over. Stop its producers and wait until "
            "nothing is behind, stop it, and promote again"
        ) from error
    return status.is_serving and status.broker_role != SLAVE


def _registered_master(client: AdminClient, name: str) -> str:
    data = client.cluster.broker_addr_table.get(name)
    return "" if data is None else data.broker_addrs.get(MASTER_ID, "")


def demote(
    client: AdminClient, address: str, broker_id: int, *, ha_master_address: str = "", force: bool = False
) -> BrokerRoleStatus:
    """Make a master a slave, and return its status. Raises RoleChangeRefused if no other master is registered."""
    status = read_role(client, address)
    if not force:
        master = _registered_master(client, status.broker_name)
        if not master or master == address:
            raise RoleChangeRefused(
                f"no other master of {status.broker_name} is registered, so nobody would take messages. Promote a "
                "slave (rmq-gateway broker promote), which demotes its master, or use --force"
            )
    request = ChangeBrokerRole(
        broker_role=SLAVE, broker_id=broker_id, force=force, ha_master_address=ha_master_address
    )
    return client.ask(address, request, timeout_s=CHANGE_TIMEOUT_S).data


def find_replica(client: AdminClient, target: str, rows: Iterable[dict[str, Any]]) -> str:
    """Return the address of ``target``: an address, or a broker name with one slave. Raises NotFound."""
    if ":" in target:
        return target
    slaves = [row["address"] for row in rows if row["broker"] == target and row["id"] != MASTER_ID]
    if len(slaves) != 1:
        raise NotFound(
            f"{target} has {len(slaves)} registered slaves: name one by its address (host:port), as "
            '"rmq-gateway broker status" shows it'
        )
    return str(slaves[0])
