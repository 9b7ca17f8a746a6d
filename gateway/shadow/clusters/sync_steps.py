"""What a copy of settings from one cluster to another consists of: small steps that are shown before they are taken.

Not responsible for finding the steps (sync and sync_offsets do), nor for messages.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gateway.shadow.clusters.cluster import ASKING_FAILED, Cluster
from remoting.declare import Request


class SyncAction(Enum):
    """What is to be done, and after `apply` what was done."""

    CREATE = "create"
    CHANGE = "change"
    SAME = "same"
    LEFT_OUT = "left out"
    FAILED = "failed"


ALL_NAMESRVS = ""
"""Instead of a broker's name: every namesrv is told, as clients ask any of them."""


@dataclass(slots=True)
class SyncStep:
    """One thing of the target: `kind` and `name` say which, `detail` what differs, why it is left out, or what failed.

    `requests` bring it about; none for what is the same or left out. `broker` is the target's.
    """

    kind: str
    name: str
    action: SyncAction
    detail: str = ""
    broker: str = ALL_NAMESRVS
    requests: tuple[Request[Any], ...] = ()

    def to_dict(self) -> dict[str, str]:
        """As a row of a table."""
        return {
            "kind": self.kind,
            "name": self.name,
            "broker": self.broker,
            "action": self.action.value,
            "detail": self.detail,
        }


async def apply_steps(target: Cluster, steps: Iterable[SyncStep]) -> None:
    """Takes the steps in their order; one that fails says so in its `detail` and does not keep the others back."""
    for step in steps:
        try:
            for request in step.requests:
                await _send_request(target, step, request)
        except (*ASKING_FAILED, LookupError) as problem:
            step.action, step.detail = SyncAction.FAILED, str(problem) or type(problem).__name__


async def _send_request(target: Cluster, step: SyncStep, request: Request[Any]) -> None:
    if step.broker != ALL_NAMESRVS:
        await target.ask_broker(step.broker, request)
        return
    for address in target.namesrvs:
        await target.ask_address(address, request)


def describe_differences(wanted: Any, present: Any, names: Iterable[str]) -> Iterator[str]:
    """`name present -> wanted` for every named attribute that differs."""
    for name in names:
        now, then = getattr(present, name), getattr(wanted, name)
        if now != then:
            yield f"{name} {now} -> {then}"


def attribute_changes(wanted: dict[str, str], present: dict[str, str]) -> dict[str, str]:
    """`+key` and `-key` that make the present attributes the wanted ones, as brokers take them."""
    changes = {f"+{key}": value for key, value in wanted.items() if present.get(key) != value}
    changes |= {f"-{key}": "" for key in present if key not in wanted}
    return changes
