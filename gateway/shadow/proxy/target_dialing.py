"""Which of the target's brokers a client's directed requests go to, found out when it is needed.

Not responsible for the connection's use (target is).
"""

from collections.abc import Mapping

from gateway.shadow.clusters.broker_pairs import counterpart
from gateway.shadow.clusters.cluster import ASKING_FAILED, Cluster, split_address
from gateway.shadow.proxy.context import Dial
from remoting.transport import Opener, Transport


def dial_with(target: Cluster, declared: Mapping[str, str], opener: Opener) -> Dial:
    """Connections to the masters of a target that is running; ``declared`` are its brokers' names by the primary's.

    A target that is not known yet, or does not accept where it was last seen, is looked up again.
    """

    async def dial(broker: str) -> tuple[str, str, Transport]:
        try:
            return await connect(broker)
        except (OSError, LookupError):
            try:
                await target.refresh()
            except ASKING_FAILED as error:
                raise OSError(f"the target's namesrv does not answer: {error}") from error
            return await connect(broker)

    async def connect(broker: str) -> tuple[str, str, Transport]:
        name = counterpart(broker, target.brokers, declared)
        address = target.master(name)
        return name, address, await opener(*split_address(address))

    return dial
