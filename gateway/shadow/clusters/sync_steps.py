"""The steps of a copy of metadata from one cluster to the other; they are planned and shown before they are taken.

`metadata_sync` and `full_sync` plan the steps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gateway.shadow.clusters.cluster import CLUSTER_ERRORS, Cluster
from remoting.declare import Request


class SyncAction(Enum):
    """The action of a step: planned, or after `apply_steps` its result."""

    CREATE = "create"
    CHANGE = "change"
    SAME = "same"
    LEFT_OUT = "left out"
    FAILED = "failed"


ALL_NAMESRVS = ""
"""In place of a broker name: the requests go to every namesrv, since clients ask any of them."""


@dataclass(slots=True)
class SyncStep:
    """One change at the target.

    `kind` and `name` identify it; `detail` says what differs, why it is left out, or what failed.

    `requests` make the change; there are none if nothing differs or the step is left out. `broker` is the target's.
    """

    kind: str
    name: str
    action: SyncAction
    detail: str = ""
    broker: str = ALL_NAMESRVS
    requests: tuple[Request[Any], ...] = ()

    def to_dict(self) -> dict[str, str]:
        """Return the step as a row of a table."""
        return {
            "kind": self.kind,
            "name": self.name,
            "broker": self.broker,
            "action": self.action.value,
            "detail": self.detail,
        }


async def apply_steps(target: Cluster, steps: Iterable[SyncStep]) -> None:
    """Take the steps in order. A failed step has the reason in its `detail`; the next ones are still taken."""
    for step in steps:
        try:
            for request in step.requests:
                await _send_request(target, step, request)
        except (*CLUSTER_ERRORS, LookupError) as problem:
            step.action, step.detail = SyncAction.FAILED, str(problem) or type(problem).__name__


async def _send_request(target: Cluster, step: SyncStep, request: Request[Any]) -> None:
    if step.broker != ALL_NAMESRVS:
        await target.ask_broker(step.broker, request)
        return
    # Namesrvs do not tell each other, and clients ask any of them.
    for address in target.namesrvs:
        await target.ask_address(address, request)


def describe_differences(desired: Any, present: Any, names: Iterable[str]) -> Iterator[str]:
    """Yield `name present -> wanted` for every named attribute that differs."""
    for name in names:
        now, then = getattr(present, name), getattr(desired, name)
        if now != then:
            yield f"{name} {now} -> {then}"


def attribute_changes(desired: dict[str, str], present: dict[str, str]) -> dict[str, str]:
    """Return the `+key` and `-key` entries with which a broker turns the present attributes into the wanted ones."""
    changes = {f"+{key}": value for key, value in desired.items() if present.get(key) != value}
    changes |= {f"-{key}": "" for key in present if key not in desired}
    return changes
