"""Builds the capture of a real gateway: real files, a worker thread, the system clock."""

import secrets
import socket
from functools import partial

import trio

from gateway.shadow.capture.files import DiskFolder
from gateway.shadow.capture.settings import CaptureSettings
from gateway.shadow.capture.writer import CaptureWriter
from storage.clock import SystemClock


def build_capture(settings: CaptureSettings, *, has_mirror: bool) -> CaptureWriter | None:
    """Return the observer for the hub, whose `run` must run; None when nothing is captured.

    ``has_mirror``: exchanges wait for the answer of the mirror's target.
    """
    if not settings.directory:
        return None
    return CaptureWriter(
        settings,
        DiskFolder(settings.directory),
        gateway=socket.gethostname(),
        run=secrets.randbits(64),
        now_ms=SystemClock().now_ms,
        # A thread that hangs in a disk call must not keep the process from ending.
        run_blocking=partial(trio.to_thread.run_sync, abandon_on_cancel=True),
        has_mirror=has_mirror,
    )
