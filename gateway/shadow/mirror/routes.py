"""Modes of topics as JSON, switched while the gateway runs. Not responsible for what a mode does (mirrors)."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from gateway.shadow.clusters.cluster import ASKING_FAILED
from gateway.shadow.console.server import ConsoleError, Route
from gateway.shadow.cutover.machine import Refused
from gateway.shadow.cutover.routes import CONFLICT, UNREACHABLE
from gateway.shadow.mirror.mirrors import Mirrors


class Routes(Protocol):
    """What the console takes."""

    def get(self, path: str, function: Route) -> None: ...

    def post(self, path: str, function: Route) -> None: ...


Switch = Callable[[str, str], Awaitable[None]]
"""Sets a topic's mode, "" for that of its rule. Raises ValueError, Refused, ASKING_FAILED of `cluster`, LookupError."""


class MirrorRoutes:
    """GET `/mirror`: streams, modes, what diverged. POST `/mirror/mode`: `topic` and its `mode`; none: its rule's."""

    def __init__(self, mirrors: Mirrors, switch: Switch) -> None:
        self._mirrors = mirrors
        self._switch = switch

    def register(self, console: Routes) -> None:
        """Adds both."""
        console.get("/mirror", lambda _: self._mirrors.status())
        console.post("/mirror/mode", self.switch)

    async def switch(self, given: dict[str, Any]) -> dict[str, Any]:
        """Switches a topic from now on. Raises ConsoleError for what is no mode, and for what is refused."""
        topic, mode = given.get("topic"), given.get("mode") or ""
        if not isinstance(topic, str) or not topic or not isinstance(mode, str):
            raise ConsoleError("topic must be the name of a topic, mode the name of a mode or nothing")
        try:
            await self._switch(topic, mode)
        except Refused as refused:
            raise ConsoleError(str(refused), CONFLICT) from refused
        except ASKING_FAILED as problem:
            raise ConsoleError(f"{type(problem).__name__}: {problem}", UNREACHABLE) from problem
        except (ValueError, LookupError) as error:
            raise ConsoleError(str(error)) from error
        return {"modes": self._mirrors.rules.modes()}
