"""Finds out whether two namesrv addresses lead to the same cluster.

They do when both name the same address for a broker, or when a broker of the same name has the same time of start on
both sides and a producer that is registered for a moment at one side is seen at the other: so a cluster that is reached
by another address, through a proxy or through a gateway is recognised too. The time of start alone could be equal by
chance.
"""

import contextlib
import secrets
from typing import Final

from codec.constants import MASTER_ID
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo
from remoting.requests.client import GetProducerConnectionList, HeartBeat, UnregisterClient
from toolkit.settings import SettingsError

MAX_COMPARED_BROKERS: Final = 64
"""Brokers that are asked for their time of start; further ones are compared by address only."""
_BOOT_TIME: Final = "bootTimestamp"


async def find_shared_broker(primary: Cluster, target: Cluster) -> str:
    """Return why the clusters are the same; "" if they are not. Raises CLUSTER_ERRORS."""
    await primary.refresh()
    await target.refresh()
    named = {address: name for name, all in primary.brokers.items() for address in all.values()}
    for addresses in target.brokers.values():
        for address in addresses.values():
            if address in named:
                return _same_cluster(f"both name the broker {named[address]} at {address}")
    shared_names = [broker for broker in target.brokers if broker in primary.brokers][:MAX_COMPARED_BROKERS]
    problems: list[Exception] = []
    for broker in shared_names:
        try:
            if await _is_same_broker(primary, target, broker):
                at = target.brokers[broker][MASTER_ID]
                return _same_cluster(f"the target's broker {broker} at {at} is the primary's")
        except CLUSTER_ERRORS as error:
            problems.append(error)  # one broker that is down must not stop mirroring to the others
    if problems and len(problems) == len(shared_names):
        raise problems[0]
    return ""


async def refuse_same_cluster(primary: Cluster, target: Cluster) -> None:
    """Raise SettingsError if the clusters are the same, and CLUSTER_ERRORS if one does not answer."""
    reason = await find_shared_broker(primary, target)
    if reason:
        raise SettingsError(reason)


async def _is_same_broker(primary: Cluster, target: Cluster, broker: str) -> bool:
    if not all(MASTER_ID in side.brokers[broker] for side in (primary, target)):
        return False
    started = [await _boot_time(side, broker) for side in (primary, target)]
    return bool(started[0]) and started[0] == started[1] and await _shares_producers(primary, target, broker)


async def _shares_producers(primary: Cluster, target: Cluster, broker: str) -> bool:
    """Tell whether a producer that is registered at the primary is seen at the target."""
    group = client_id = f"shadow-gateway-check-{secrets.token_hex(8)}"
    data = HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=group)])
    try:
        await primary.ask_broker(broker, HeartBeat(data=data))
    except RequestError:
        return False
    try:
        await target.ask_broker(broker, GetProducerConnectionList(producer_group=group))
    except RequestError:
        return False  # the group does not exist there
    finally:
        with contextlib.suppress(*CLUSTER_ERRORS):
            await primary.ask_broker(broker, UnregisterClient(client_id=client_id, producer_group=group))
    return True


def _same_cluster(found: str) -> str:
    return (
        f"the target is the primary: {found}. Every message would be stored twice. "
        "Set target.namesrv to the namesrv of another cluster"
    )


async def _boot_time(cluster: Cluster, broker: str) -> str:
    """Return a broker's time of start as it says it; "" if it does not."""
    try:
        table = (await cluster.ask_broker(broker, GetBrokerRuntimeInfo())).data.table
    except RequestError:
        return ""
    return table.get(_BOOT_TIME) or ""
