"""Connect a session to the target's broker that stands for one of the primary's."""

from collections.abc import Awaitable, Callable, Mapping

from gateway.shadow.clusters.broker_pairs import find_counterpart
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
from gateway.shadow.proxy.listener_context import TargetDialer
from remoting.transport import Transport


def make_target_dialer(
    target: Cluster, broker_pairs: Mapping[str, str], dial: Callable[[str], Awaitable[Transport]]
) -> TargetDialer:
    """Return a function that connects to masters of a running target.

    ``broker_pairs`` maps names of the primary's brokers to names of the target's. A broker that is unknown, or does not
    accept connections at its last known address, is looked up again. ``dial`` connects to an address.
    """

    async def dial_target(broker: str) -> tuple[str, str, Transport]:
        try:
            return await connect_to_master(broker)
        except (OSError, LookupError):
            try:
                await target.refresh()
            except CLUSTER_ERRORS as error:
                raise OSError(f"the target's namesrv does not answer: {error}") from error
            return await connect_to_master(broker)

    async def connect_to_master(broker: str) -> tuple[str, str, Transport]:
        name = find_counterpart(broker, target.brokers, broker_pairs)
        address = target.master(name)
        return name, address, await dial(address)

    return dial_target
