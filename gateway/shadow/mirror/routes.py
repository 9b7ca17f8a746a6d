"""Console routes of the mirror: its status as JSON, and switching modes while the gateway runs."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from gateway.http_server.errors import HTTP_BAD_GATEWAY, HTTP_CONFLICT, ConsoleError, OperationRefused
from gateway.http_server.server import RouteRegistry
from gateway.shadow.clusters.cluster import CLUSTER_ERRORS
from gateway.shadow.mirror.mirror import Mirror

MAX_NAME_CHARS: Final = 255
SwitchMode = Callable[[str, str], Awaitable[None]]
"""Sets the mode of a topic; the mode "" clears the override, so that the rule's mode applies again.

Raises ValueError, OperationRefused, CLUSTER_ERRORS of `cluster`, LookupError.
"""


class MirrorRoutes:
    """`GET /mirror` shows streams, modes and diverged queues. `POST /mirror/mode` sets the `mode` of a `topic`.

    Without a mode, the override of the topic is cleared.
    """

    def __init__(self, mirror: Mirror, switch: SwitchMode) -> None:
        self._mirror = mirror
        self._switch_mode = switch

    def register(self, console: RouteRegistry) -> None:
        """Register both routes."""
        console.get("/mirror", lambda _: self._mirror.status())
        console.post("/mirror/mode", self.switch_mode)

    async def switch_mode(self, given: dict[str, Any]) -> dict[str, Any]:
        """Switch the mode of a topic from now on. Raises ConsoleError for an unknown mode and for a refused switch."""
        topic, mode = given.get("topic"), given.get("mode") or ""
        if not isinstance(topic, str) or not 0 < len(topic) <= MAX_NAME_CHARS or not isinstance(mode, str):
            raise ConsoleError("topic must be a topic name, and mode a mode name or empty")
        try:
            await self._switch_mode(topic, mode)
        except OperationRefused as refused:
            raise ConsoleError(str(refused), HTTP_CONFLICT) from refused
        except CLUSTER_ERRORS as problem:
            raise ConsoleError(f"{type(problem).__name__}: {problem}", HTTP_BAD_GATEWAY) from problem
        except (ValueError, LookupError) as error:
            raise ConsoleError(str(error)) from error
        return {"modes": self._mirror.rules.mode_overrides()}
