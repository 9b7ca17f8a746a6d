"""Takes the write permission of a switched topic at the primary, so that producers that still dial it get an error.

Theory of operation. A broker does not look at a topic's permission when it stores a message: clients do, in the route.
Without the write permission a producer finds no queue to send to, at the latest when it reads its routes again (every
30 s for stock clients), and its sends fail instead of reaching nobody. Everything else works as before: consumers read,
and the gateway copies messages back in a roll-back.

Clients of the gateway read the same routes. The director lets the proxy show the topic as writable to them, from the
moment the taken permissions are in the move file. So `mover` writes the file first and then changes the topic; the
other way round when the permission is given back. A crash in between leaves a topic that is writable at the primary
although the file calls it read-only, which `take` and `give_back` mend when they are repeated.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Final

from codec.topics import PERM_WRITE
from gateway.shadow.clusters.cluster_pair import LOOKUP_ERRORS, ClusterPair
from gateway.shadow.clusters.metadata_sync import find_topic, topic_request
from gateway.shadow.cutover.checks import MoveCheck
from remoting.bodies.topics import TopicConfig

PERMISSION_CHECK: Final = "read-only"
ROUTES_CHECK: Final = "routes"


@dataclass(frozen=True, slots=True)
class WritePermission:
    """Changes the permission of topics at the primary."""

    clusters: ClusterPair

    async def find_writable(self, topic: str) -> Mapping[str, TopicConfig]:
        """Return the topic at each broker of the primary where clients may write it. Raises LOOKUP_ERRORS."""
        found = {}
        for broker in await self.clusters.brokers_of(topic):
            config = await find_topic(self.clusters.primary, broker, topic)
            if config is not None and config.perm & PERM_WRITE:
                found[broker] = config
        return found

    async def take(self, found: Mapping[str, TopicConfig]) -> None:
        """Take the write permission of what `find_writable` returned. Raises LOOKUP_ERRORS."""
        for broker, config in found.items():
            await self._set_permission(broker, config, config.perm & ~PERM_WRITE)

    async def give_back(self, topic: str, taken: Mapping[str, int]) -> MoveCheck:
        """Give the write permission back at every broker that still has the topic, and return that as a check.

        A broker that has left the primary is named: its topic stays read-only. Raises LOOKUP_ERRORS.
        """
        present = set(await self.clusters.brokers_of(topic))
        for broker in sorted(present & taken.keys()):
            config = await find_topic(self.clusters.primary, broker, topic)
            if config is not None and not config.perm & PERM_WRITE:
                await self._set_permission(broker, config, config.perm | taken[broker] & PERM_WRITE)
        gone = sorted(taken.keys() - present)
        reason = f"{', '.join(gone)} does not have the topic any more; it may still be read-only there"
        return MoveCheck(PERMISSION_CHECK, True, "write permission given back", reason if gone else "")

    async def check_route(self, topic: str, brokers: Iterable[str]) -> MoveCheck:
        """Check that the primary's namesrv tells clients again that they may write to these brokers."""
        try:
            queues = (await self.clusters.primary.route(topic)).queue_datas
        except LOOKUP_ERRORS as problem:
            return MoveCheck(ROUTES_CHECK, False, "unknown", f"{type(problem).__name__}: {problem}")
        waiting = {each.broker_name for each in queues if not each.perm & PERM_WRITE} & set(brokers)
        reason = f"the primary's namesrv still shows the topic as read-only at {', '.join(sorted(waiting))}"
        return MoveCheck(ROUTES_CHECK, not waiting, "writable at the namesrv", reason if waiting else "")

    async def _set_permission(self, broker: str, config: TopicConfig, permission: int) -> None:
        wanted = copy(config)
        wanted.perm = permission
        await self.clusters.primary.ask_broker(broker, topic_request(wanted, config.attributes))
