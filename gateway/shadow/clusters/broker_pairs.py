"""Finds the target's broker for each broker of the primary."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Outcome, TargetWriter
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo


def find_counterpart(broker: str, known: Mapping[str, object], declared: Mapping[str, str]) -> str:
    """Return the declared broker name, else the same name, else the only broker; raise LookupError otherwise."""
    name = declared.get(broker, broker)
    if name in known:
        return name
    if broker not in declared and len(known) == 1:
        return next(iter(known))
    raise LookupError(f"the target has no broker {name!r}; it has {', '.join(sorted(known)) or 'none'}")


class PairedWriter:
    """A `TargetWriter` that is created when its cluster first answers; until then writing fails."""

    def __init__(
        self,
        cluster: Cluster,
        broker: str,
        declared: Mapping[str, str],
        make: Callable[[str], TargetWriter],
    ) -> None:
        self._cluster = cluster
        self._broker = broker
        self._declared = declared
        self._make = make
        self._writer: TargetWriter | None = None
        self._name = ""

    async def write(self, exchanges: Sequence[Exchange]) -> list[Outcome]:
        """See `TargetWriter`."""
        if self._writer is None:
            self._writer = self._make(await self._find_broker())
        return await self._writer.write(exchanges)

    async def probe(self) -> None:
        """Send a request that changes nothing to the counterpart. Raises CLUSTER_ERRORS, LookupError."""
        await self._cluster.refresh()
        name = self._name or await self._find_broker()
        with contextlib.suppress(RequestError):  # a broker that refuses is reachable
            await self._cluster.ask_broker(name, GetBrokerRuntimeInfo())

    async def _find_broker(self) -> str:
        if not self._cluster.brokers:
            await self._cluster.refresh()
        self._name = find_counterpart(self._broker, self._cluster.brokers, self._declared)
        return self._name
