"""An ext4 file system in an image file, which can be stopped as a power cut would stop it.

The program runs in a mount and a process namespace of its own (`enter_namespaces`). However it ends, the kernel kills
the servers it started, unmounts the file system and detaches the loop device.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, NoReturn, Self

EXT4_IOC_SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = 2
"""Stop at once: not even what the journal has in memory is written. Source: linux, include/uapi/linux/ext4.h."""
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWPID: Final = 0x20000000
PR_SET_PDEATHSIG: Final = 1
IMAGE_BYTES: Final = 6 << 30
"""Size of the sparse image; a few hundred MB of it are written."""
UNMOUNT_TIMEOUT_S: Final = 20.0
_TOOLS: Final = ("mkfs.ext4", "mount", "umount")


class NotPossibleHere(Exception):
    """This machine cannot stop a file system; the text says what it lacks."""


def enter_namespaces() -> None:
    """Continue in a child with mounts and processes of its own; this process waits for it and exits as it does.

    Call it before the first thread starts. Raises NotPossibleHere.
    """
    if sys.platform != "linux":
        raise NotPossibleHere("a power cut needs Linux: it stops an ext4 file system on a loop device")
    if os.geteuid() != 0:
        raise NotPossibleHere("a power cut needs root, to mount a file system: run it with sudo")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise NotPossibleHere(f"{', '.join(missing)} not found: install e2fsprogs and util-linux")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | CLONE_NEWPID) != 0:
        raise NotPossibleHere(f"no namespaces: {os.strerror(ctypes.get_errno())}; CAP_SYS_ADMIN is needed")
    child = os.fork()
    if child:
        _exit_like(child)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)  # Ctrl-C reaches the waiting process, which passes it on
    _run("mount", "--make-rprivate", "/")
    _run("mount", "-t", "proc", "proc", "/proc")


def _exit_like(child: int) -> NoReturn:
    """Pass signals on to a child process until it ends, and end with its exit status."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


class CuttableFileSystem:
    """A mounted file system in ``folder``; `cut_power` stops it, `mount` brings it back as the cut left it.

    As a context manager it is unmounted at the end. Raises NotPossibleHere if the machine cannot do it.
    """

    def __init__(self, image: Path, folder: Path) -> None:
        self.folder = folder
        self._image = image
        self._is_mounted = False
        folder.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(image))

    def mount(self) -> None:
        """Mount the image; the kernel replays the journal first."""
        _run("mount", "-t", "ext4", "-o", "loop", str(self._image), str(self.folder))
        self._is_mounted = True

    def cut_power(self) -> None:
        """Stop the file system: nothing that is not in the image by now will get there."""
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        except OSError as error:
            raise NotPossibleHere(
                f"the kernel does not stop an ext4 file system: {error.strerror}"
            ) from error
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Unmount, waiting until the processes that had files open there are gone."""
        end = time.monotonic() + UNMOUNT_TIMEOUT_S
        while self._is_mounted:
            done = subprocess.run(["umount", str(self.folder)], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                self._is_mounted = False
            elif time.monotonic() > end:
                raise RuntimeError(f"{self.folder} cannot be unmounted: {done.stderr.strip()}")
            else:
                time.sleep(0.05)

    def __enter__(self) -> Self:
        self.mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unmount()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotPossibleHere(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
