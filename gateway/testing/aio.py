"""The methods of `RocketMQ` as coroutines of asyncio or trio: they wait in a worker thread."""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from codec.message import Message
from gateway.testing.contents import DEFAULT_TIMEOUT_S

if TYPE_CHECKING:
    from gateway.testing.double import RocketMQ

Result = TypeVar("Result")


async def run_in_worker(function: Callable[..., Result], *args: Any, **options: Any) -> Result:
    """Run a blocking function in a worker thread of the event loop that runs this coroutine, asyncio's or trio's."""
    call = functools.partial(function, *args, **options)
    if trio.lowlevel.in_trio_task():
        return await trio.to_thread.run_sync(call)
    import asyncio  # takes longer to import than everything else here

    return await asyncio.to_thread(call)


class AsyncRocketMQ:
    """`RocketMQ` for coroutines whose event loop must go on while they wait."""

    def __init__(self, rocketmq: "RocketMQ") -> None:
        self._rocketmq = rocketmq

    async def create_topic(
        self,
        topic: str,
        queues: int = 4,
        *,
        ordered: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """As `RocketMQ.create_topic`."""
        await run_in_worker(
            self._rocketmq.create_topic, topic, queues, ordered=ordered, attributes=attributes
        )

    async def messages(self, topic: str) -> list[Message]:
        """As `RocketMQ.messages`."""
        return await run_in_worker(self._rocketmq.messages, topic)

    async def wait_for(
        self, topic: str, count: int = 1, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> list[Message]:
        """As `RocketMQ.wait_for`."""
        return await run_in_worker(self._rocketmq.wait_for, topic, count, timeout_s)

    async def consumer_lag(self, group: str, topic: str | None = None) -> int:
        """As `RocketMQ.consumer_lag`."""
        return await run_in_worker(self._rocketmq.consumer_lag, group, topic)

    async def wait_until_consumed(
        self, group: str, topic: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """As `RocketMQ.wait_until_consumed`."""
        await run_in_worker(self._rocketmq.wait_until_consumed, group, topic, timeout_s)

    async def advance(self, seconds: float) -> None:
        """As `RocketMQ.advance`."""
        await run_in_worker(self._rocketmq.advance, seconds)

    async def stop_broker(self, name: str | None = None, *, keep_route: bool = False) -> None:
        """As `RocketMQ.stop_broker`."""
        await run_in_worker(self._rocketmq.stop_broker, name, keep_route=keep_route)

    async def start_broker(self, name: str | None = None) -> None:
        """As `RocketMQ.start_broker`."""
        await run_in_worker(self._rocketmq.start_broker, name)

    async def reset(self) -> None:
        """As `RocketMQ.reset`."""
        await run_in_worker(self._rocketmq.reset)
