"""Modes of topics as JSON, switched while the gateway runs. Not responsible for what a mode does (mirrors)."""

from typing import Any, Protocol

from gateway.shadow.mirror.mirrors import Mirrors
from gateway.shadow.report.console import ConsoleError, Route


class Routes(Protocol):
    """What the console takes."""

    def get(self, path: str, function: Route) -> None: ...

    def post(self, path: str, function: Route) -> None: ...


class MirrorRoutes:
    """GET `/mirror`: streams, modes, what diverged. POST `/mirror/mode`: `topic` and its `mode`; none: its rule's."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors

    def register(self, console: Routes) -> None:
        """Adds both."""
        console.get("/mirror", lambda _: self._mirrors.status())
        console.post("/mirror/mode", self.switch)

    def switch(self, given: dict[str, Any]) -> dict[str, Any]:
        """Switches a topic from now on. Raises ConsoleError for what is no mode."""
        topic, mode = given.get("topic"), given.get("mode") or ""
        if not isinstance(topic, str) or not topic or not isinstance(mode, str):
            raise ConsoleError("topic must be the name of a topic, mode the name of a mode or nothing")
        try:
            if mode:
                self._mirrors.set_mode(topic, mode)
            else:
                self._mirrors.reset_mode(topic)
        except ValueError as error:
            raise ConsoleError(str(error)) from error
        return {"modes": self._mirrors.rules.modes()}
