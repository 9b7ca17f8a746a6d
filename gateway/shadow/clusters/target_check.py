"""Checks that the target is another cluster than the primary, and that brokers of kind "ours" accept a mirror.

The gateway refuses to start with such a target. If the target first answers later, or is replaced by the primary, the
`LoopGuard` is closed. A missing `mirrorTarget` does not stop anything: it may be set while the gateway runs.

Two namesrv addresses lead to the same cluster when both name the same address for a broker. A cluster that is reached
by another address, through a proxy or through a gateway is recognised by its brokers: one of the same name has the same
time of start on both sides, and a producer that is registered for a moment at one side is seen at the other. The time
of start alone could be equal by chance.
"""

import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from codec.constants import MASTER_ID
from gateway.config.properties_file import PropertiesError, decode_text, parse_properties
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
from gateway.shadow.clusters.loop_guard import NOT_CHECKED, LoopGuard
from remoting.bodies.heartbeat import HeartbeatData, ProducerData
from remoting.errors import RequestError
from remoting.requests.admin import GetBrokerConfig, GetBrokerRuntimeInfo
from remoting.requests.client import GetProducerConnectionList, HeartBeat, UnregisterClient
from toolkit.settings import SettingsError

log = logging.getLogger(__name__)

FIRST_CHECK_S: Final = 5.0
"""Longest time that the start waits for the first check."""
RETRY_S: Final = 0.5
MAX_RETRY_S: Final = 5.0
RECHECK_S: Final = 30.0
MAX_NAMED_BROKERS: Final = 5
MAX_COMPARED_BROKERS: Final = 64
"""Brokers that are asked for their time of start; further ones are compared by address only."""
_BOOT_TIME: Final = "bootTimestamp"
IsOwnAddress = Callable[[str], Awaitable[bool]]
"""Tells whether "host:port" is one of the gateway's own listeners."""


class TargetCheck:
    """Compares both clusters at start and then every `RECHECK_S` seconds.

    ``preserves_offsets``: the target's kind is "ours". ``is_own_address`` recognises the gateway's own listeners.
    """

    def __init__(
        self,
        primary: Cluster,
        target: Cluster,
        guard: LoopGuard,
        is_own_address: IsOwnAddress,
        *,
        preserves_offsets: bool,
    ) -> None:
        self._primary = primary
        self._target = target
        self._guard = guard
        self._is_own_address = is_own_address
        self._preserves_offsets = preserves_offsets
        self._failure = NOT_CHECKED
        self._refusing_brokers = ""

    @property
    def problem(self) -> str:
        """The reason why the target cannot be mirrored to, and what to change; "" while there is none."""
        if self._guard.problem:
            return self._guard.problem
        if self._refusing_brokers:
            return self._refusing_brokers
        return f"{self._failure}. Nothing is mirrored until then" if not self._guard.is_checked else ""

    async def check_at_start(self) -> None:
        """Check once, for at most `FIRST_CHECK_S`. Raises SettingsError if the target is the primary or the gateway."""
        with trio.move_on_after(FIRST_CHECK_S):
            await self._check()
        if self._guard.problem:
            raise SettingsError(self._guard.problem)

    async def run(self) -> None:
        """Repeat the check until the target is refused for good."""
        pause_s = RETRY_S
        while not self._guard.problem:
            pause_s = RECHECK_S if self._guard.is_checked else min(2 * pause_s, MAX_RETRY_S)
            await trio.sleep(pause_s)
            await self._check()

    async def _check(self) -> None:
        reason = await self._find_own_address()
        if not reason:
            try:
                reason = await find_shared_broker(self._primary, self._target)
            except CLUSTER_ERRORS as error:
                self._note_failure(
                    f"the target could not be compared with the primary: {str(error) or type(error).__name__}"
                )
                return
        if reason:
            self._guard.refuse(reason)
            return
        self._failure = ""
        self._guard.allow()
        if self._preserves_offsets:
            await self._find_refusing_brokers()

    def _note_failure(self, reason: str) -> None:
        if reason != self._failure and not self._guard.is_checked:
            log.warning("target is not checked yet", extra={"reason": reason})
        self._failure = reason

    async def _find_own_address(self) -> str:
        for address in self._target.namesrvs:
            if await self._is_own_address(address):
                return (
                    f"target.namesrv: {address} is a port of this gateway: every message would be mirrored to itself. "
                    "Set the namesrv of the target cluster"
                )
        return ""

    # -- brokers that do not accept messages at given offsets ------------------------------------------------------

    async def _find_refusing_brokers(self) -> None:
        refusing = []
        for broker in list(self._target.brokers)[:MAX_COMPARED_BROKERS]:
            try:
                reply = await self._target.ask_broker(broker, GetBrokerConfig())
            except (*CLUSTER_ERRORS, LookupError):
                continue  # a broker that does not tell is found out by the first message
            if not _accepts_mirror(reply.body):
                refusing.append(broker)
        text = ""
        if refusing:
            some = ", ".join(refusing[:MAX_NAMED_BROKERS]) + (
                " …" if len(refusing) > MAX_NAMED_BROKERS else ""
            )
            text = (
                f'target.kind is "ours", but mirrorTarget is not set at the target\'s broker {some}: it stores nothing '
                "at the primary's offsets. Restart it with --set mirrorTarget=true; for brokers of other servers set "
                'target.kind = "any"'
            )
            if text != self._refusing_brokers:
                log.error("target does not accept a mirror", extra={"reason": text})
        self._refusing_brokers = text


def _accepts_mirror(properties: bytes) -> bool:
    try:
        values = {line.key: line.value for line in parse_properties(decode_text(properties))}
    except PropertiesError:
        return False
    return values.get("mirrorTarget") == "true"


# -- comparing two clusters --------------------------------------------------------------------------------------------


async def find_shared_broker(primary: Cluster, target: Cluster) -> str:
    """Return why the clusters are the same; "" if they are not. Raises CLUSTER_ERRORS."""
    await primary.refresh()
    await target.refresh()
    # The cheap test first. The other one needs a request to each broker.
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
    # Nothing could be compared, which is not the same as different clusters.
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
    # Different times of start rule out the same process, without registering anything.
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


def _same_cluster(evidence: str) -> str:
    return (
        f"the target is the primary: {evidence}. Every message would be stored twice. "
        "Set target.namesrv to the namesrv of another cluster"
    )


async def _boot_time(cluster: Cluster, broker: str) -> str:
    """Return a broker's time of start as it says it; "" if it does not."""
    try:
        table = (await cluster.ask_broker(broker, GetBrokerRuntimeInfo())).data.table
    except RequestError:
        return ""
    return table.get(_BOOT_TIME) or ""
