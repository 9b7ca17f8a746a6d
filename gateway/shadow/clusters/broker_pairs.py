"""Which broker of one cluster stands for which of the other, found out when it is needed.

Not responsible for what is sent to it.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence

from gateway.shadow.clusters.cluster import Cluster
from gateway.shadow.traffic.exchange import Exchange
from gateway.shadow.traffic.outcome import Outcome, TargetWriter
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerRuntimeInfo


def find_counterpart(broker: str, known: Mapping[str, object], declared: Mapping[str, str]) -> str:
    """The declared name, else the same one, else the only one. Raises LookupError when there is none."""
    name = declared.get(broker, broker)
    if name in known:
        return name
    if broker not in declared and len(known) == 1:
        return next(iter(known))
    raise LookupError(f"the target has no broker {name!r}; it has {', '.join(sorted(known)) or 'none'}")


class PairedWriter:
    """A `Writer` that is made when its cluster answers for the first time; until then writing fails."""

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
        """See `Writer`."""
        if self._writer is None:
            self._writer = self._make(await self._find_broker())
        return await self._writer.write(exchanges)

    async def probe(self) -> None:
        """Asks the counterpart for what changes nothing. Raises ASKING_FAILED of `cluster`, and LookupError."""
        await self._cluster.refresh()
        name = self._name or await self._find_broker()
        with contextlib.suppress(RequestError):  # who refuses is there
            await self._cluster.ask_broker(name, GetBrokerRuntimeInfo())

    async def _find_broker(self) -> str:
        if not self._cluster.brokers:
            await self._cluster.refresh()
        self._name = find_counterpart(self._broker, self._cluster.brokers, self._declared)
        return self._name
