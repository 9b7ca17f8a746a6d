"""Detects that the event loop is blocked, and logs by which request.

Every request, timer and answer of a process runs on one event loop. Work that takes long delays all of them, and
nothing in the delayed requests shows the cause.

Theory of operation ------------------- The time between two waits for input is a *pass* of the event loop. trio calls
`LoopWatchdog` when a wait begins and when it ends (about 0.3 us for both calls), so passes are measured exactly. A
thread checks every `SAMPLE_INTERVAL_S`: if the pass has lasted for `SUSPICIOUS_S`, it reads the stack of the loop's
thread and remembers the request that is being handled and the line of code. When a pass of at least `STALL_S` ends, the
loop logs it with that sample. A pass that does not end is logged by the thread, at 1 s, 2 s, 4 s...

Reading the stack of the loop's thread is safe: the reading thread holds the interpreter's lock meanwhile. The path of a
request has no additional code.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import trio

from codec.command import Command
from gateway.runtime.metrics import Metric
from remoting.connection import Connection
from remoting.declare import REQUESTS
from remoting.frame_connection import FrameConnection
from remoting.handler_table import Call

log = logging.getLogger(__name__)

STALL_S: Final = 0.2
SUSPICIOUS_S: Final = 0.1
SAMPLE_INTERVAL_S: Final = 0.1
MIN_HANG_S: Final = 1.0
LOG_INTERVAL_S: Final = 1.0
"""At most one stall is logged in this time; the others are counted."""
DescribeFrame = Callable[[FrameType], dict[str, Any] | None]
"""Returns facts about the request that a function on the stack handles; None if it handles none."""
_PROJECT: Final = Path(__file__).parents[2]
_DISPATCHERS: Final[frozenset[CodeType]] = frozenset(
    (FrameConnection._dispatch.__code__, Connection.answer_late.__code__)
)


class LoopWatchdog(trio.abc.Instrument):
    """Measures the passes of the event loop that it runs in, and logs long ones.

    ``describers`` describe requests that other classes than `remoting.connection.Connection` handle.
    """

    def __init__(self, describers: Sequence[DescribeFrame] = ()) -> None:
        self._describers = (_request_in, *describers)
        self.stalls = 0
        self.stalled_s = 0.0
        self.longest_s = 0.0
        self._pass_began_s = 0.0
        self._sample: tuple[float, dict[str, Any]] | None = None
        self._logged_s = -LOG_INTERVAL_S
        self._not_logged = 0

    # -- called by the event loop ---------------------------------------------------------------------------------

    def after_io_wait(self, timeout: float) -> None:
        self._pass_began_s = time.monotonic()

    def before_io_wait(self, timeout: float) -> None:
        began_s, self._pass_began_s = self._pass_began_s, 0.0
        lasted_s = time.monotonic() - began_s
        if lasted_s >= STALL_S and began_s:
            self._record_stall(began_s, lasted_s)

    def _record_stall(self, began_s: float, lasted_s: float) -> None:
        self.stalls += 1
        self.stalled_s += lasted_s
        self.longest_s = max(self.longest_s, lasted_s)
        if began_s + lasted_s < self._logged_s + LOG_INTERVAL_S:
            self._not_logged += 1
            return
        sample = self._sample
        sample_facts = sample[1] if sample is not None and sample[0] == began_s else {}
        facts = {"stalled_ms": round(lasted_s * 1000), **sample_facts, "not_logged": self._not_logged}
        log.warning("event loop was blocked: all clients waited", extra=facts)
        self._logged_s, self._not_logged = began_s + lasted_s, 0

    # -- the watching thread --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Watch until cancelled."""
        ended = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(threading.get_ident(), ended), name="loop watchdog", daemon=True
        )
        trio.lowlevel.add_instrument(self)
        watcher.start()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
            trio.lowlevel.remove_instrument(self)

    def _watch(self, loop_thread: int, ended: threading.Event) -> None:
        logged: tuple[float, float] = (0.0, 0.0)
        while not ended.wait(SAMPLE_INTERVAL_S):
            began_s = self._pass_began_s
            lasted_s = time.monotonic() - began_s
            if not began_s or lasted_s < SUSPICIOUS_S:
                continue
            if self._sample is None or self._sample[0] != began_s:
                self._sample = began_s, self._describe_stack(sys._current_frames().get(loop_thread))
            next_log_s = 2 * logged[1] if logged[0] == began_s else MIN_HANG_S
            if lasted_s >= next_log_s:
                logged = began_s, lasted_s
                facts = {"blocked_ms": round(lasted_s * 1000), **self._sample[1]}
                log.warning("event loop is blocked: all clients wait", extra=facts)

    def _describe_stack(self, frame: FrameType | None) -> dict[str, Any]:
        try:
            return describe_stack(frame, self._describers)
        except Exception:  # noqa: BLE001 - the stack may change while it is read; the next stall is described again
            return {}

    def metrics(self) -> Iterator[Metric]:
        """Yield number, total and longest duration of the stalls."""
        yield Metric("loop_stalls_total", self.stalls, f"times the event loop was blocked for {STALL_S} s")
        yield Metric(
            "loop_stalled_seconds_total", self.stalled_s, "time the event loop was blocked in stalls"
        )
        yield Metric("loop_longest_stall_seconds", self.longest_s, "longest stall of the event loop", "gauge")


def describe_stack(frame: FrameType | None, describers: Sequence[DescribeFrame]) -> dict[str, Any]:
    """Return the innermost line of this project, and code, name and peer of the request that is handled, if any.

    Facts of inner functions win; the walk ends at the function that knows the peer.
    """
    facts: dict[str, Any] = {}
    while frame is not None and "remote" not in facts:
        path = Path(frame.f_code.co_filename)
        if "at" not in facts and path.is_relative_to(_PROJECT):
            facts["at"] = f"{path.relative_to(_PROJECT)}:{frame.f_lineno}"
        for describe in describers:
            request_facts = describe(frame)
            if request_facts is not None:
                facts = {**request_facts, **facts}
                break
        frame = frame.f_back
    return facts


def _request_in(frame: FrameType) -> dict[str, Any] | None:
    if frame.f_code in _DISPATCHERS:
        values = frame.f_locals
        return _describe_request(values.get("self"), values.get("command"))
    if frame.f_code.co_name == "work":  # the asynchronous handlers of `remoting.handler_table`
        call = frame.f_locals.get("call")
        if isinstance(call, Call):
            return _describe_request(call.connection, call.command)
    return None


def _describe_request(connection: object, command: object) -> dict[str, Any] | None:
    if not isinstance(command, Command) or not isinstance(connection, Connection):
        return None
    request = REQUESTS.get(command.code)
    return {
        "code": command.code,
        "request": request.NAME if request is not None else "",
        "body_bytes": len(command.body),
        "remote": connection.remote,
    }
