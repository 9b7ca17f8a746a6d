"""One broker process, as its supervisor has it: started, its output forwarded, its end awaited.

`gateway.process.broker_main` is the program that it runs.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from gateway.config.process import ServeConfig
from gateway.process.supervision.restart_policy import ProcessEnd
from gateway.runtime.stop_signals import STOP_SIGNALS
from remoting.reactor import Reactor
from remoting.transport import SocketTransport, Transport

MAX_LINE_BYTES: Final = 64 * 1024
"""A longer line is cut, so that a process that never ends its line costs no more memory."""
_ERROR_PREFIX: Final = b"Error: "


class LogLines:
    """The output of one process, fed in pieces of any size.

    Lines that start with ``Error:`` are what `run_process` prints when a server cannot start. They are collected in
    ``errors``, because only the supervisor knows whether they end the whole server.
    """

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._rest = b""

    def feed(self, data: bytes) -> str:
        """Return the lines that are whole now, as one text to be written at once."""
        whole, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            whole, newline, self._rest = whole + newline + self._rest, b"\n", b""
        return self._without_errors(whole + newline)

    def finish(self) -> str:
        """Return the last line when the output has ended, if it had no end."""
        rest, self._rest = self._rest, b""
        return self._without_errors(rest + b"\n") if rest else ""

    def _without_errors(self, lines: bytes) -> str:
        if _ERROR_PREFIX not in lines:
            return lines.decode(errors="replace")
        shown = []
        for line in lines.splitlines(keepends=True):
            if line.startswith(_ERROR_PREFIX):
                self.errors.append(line.removeprefix(_ERROR_PREFIX).decode(errors="replace").strip())
            else:
                shown.append(line)
        return b"".join(shown).decode(errors="replace")


PROGRAM: Final = "gateway.process.broker_main"
READ_BYTES: Final = 64 * 1024
LAST_OUTPUT_S: Final = 1.0
"""Longest time to wait for the output of a process that has ended; a process started by it may hold the pipe open."""


@dataclass(frozen=True, slots=True)
class BrokerJob:
    """The instructions to a broker process: a configuration with one broker and no namesrv, and its supervisor's id.

    ``registers_with_supervisor`` is False when the supervisor runs no namesrv.
    """

    config: ServeConfig
    supervisor_pid: int
    registers_with_supervisor: bool


class BrokerProcess:
    """A started process; ``control`` is the supervisor's end of its control channel."""

    def __init__(self, process: "subprocess.Popen[bytes]", control: Transport) -> None:
        self._process = process
        self._lines = LogLines()
        self.pid = process.pid
        self.ended = trio.Event()
        self.end: ProcessEnd | None = None
        self.control = control

    async def run(self, write_log: Callable[[str], object]) -> None:
        """Forward the output until the process has ended, also after a cancellation: the process may still log."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._forward_output, write_log)
                # A limiter of its own: the threads of many brokers must not take the places of other work.
                status = await trio.to_thread.run_sync(self._process.wait, limiter=trio.CapacityLimiter(1))
                nursery.cancel_scope.deadline = trio.current_time() + LAST_OUTPUT_S
        self.end = ProcessEnd(status, tuple(self._lines.errors))
        self.ended.set()

    async def _forward_output(self, write_log: Callable[[str], object]) -> None:
        assert self._process.stdout is not None
        try:
            async with trio.lowlevel.FdStream(os.dup(self._process.stdout.fileno())) as stream:
                self._process.stdout.close()
                while data := await stream.receive_some(READ_BYTES):
                    write_log(self._lines.feed(data))
        finally:
            write_log(self._lines.finish())

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()


class SupervisorTransport(SocketTransport):
    """The supervisor's end of a control channel; addresses of its routes are those for clients on this machine."""

    __slots__ = ()

    def __init__(self, sock: socket.socket, reactor: Reactor | None, broker_name: str) -> None:
        super().__init__(sock, reactor)
        self.local = ("127.0.0.1", 0)
        self.remote = (broker_name, 0)


def start_broker_process(job: BrokerJob, reactor: Reactor | None = None) -> BrokerProcess:
    """Start a process for a job. Call it in the main thread, whose end would end the process. Raises OSError.

    The job goes through standard input, because settings may be secret and other users can see command lines. SIGTERM
    and SIGINT are blocked until the process can handle them: a Ctrl-C reaches all processes of a terminal at once.
    """
    own_end, child_end = socket.socketpair()
    paths = [os.path.abspath(path) for path in sys.path]
    with child_end:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, str(child_end.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(child_end.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        except BaseException:
            own_end.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stdin:  # `BrokerProcess.run` tells how it ended
        stdin.write(pickle.dumps(job))
    return BrokerProcess(process, SupervisorTransport(own_end, reactor, job.config.brokers[0].replica_name))
