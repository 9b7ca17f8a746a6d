"""A RocketMQ for tests: namesrv and broker in memory, time that can be moved ahead, and faults on demand.

    from gateway.testing import RocketMQ

    with RocketMQ() as rocketmq:
        producer = connect(rocketmq.namesrv_address)

Two seams make this possible and cost real servers nothing. All parts of a broker ask one injected clock: its wall
clock can be moved ahead (`servers.py`, and `connection.py` for times in requests), its monotonic clock cannot,
or clients would count as dead. And a server takes the type of its connections as a parameter: `connection.py` strikes
requests before their handler, and answers when they are written.

The servers are imported only when one of the names is used, because pytest imports this package in every run.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.testing.double import RocketMQ, WaitTimeout

__all__ = ["RocketMQ", "WaitTimeout"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gateway.testing import double

    return getattr(double, name)
