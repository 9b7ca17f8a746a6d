"""A second machine on this one: a network namespace with one link, which can lose everything without a word.

Needs root and Linux, as `ip netns` does. Where that is missing, `Loopback` stands for the second machine, and its link
cannot be dropped.
"""

import itertools
import json
import os
import random
import subprocess
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Protocol, Self

NOBODY: Final = "02:00:00:00:00:99"
"""A hardware address that no interface has: what is sent to it is lost, and nobody is told."""
_NUMBERS = itertools.count(1)


class NoNamespaces(Exception):
    """This machine, or this user, cannot make network namespaces."""


class MachineLink(Protocol):
    """Two machines and their link: the first one is this machine, ``prefix`` runs a program on the second."""

    @property
    def first(self) -> str: ...

    @property
    def second(self) -> str: ...

    @property
    def prefix(self) -> tuple[str, ...]: ...

    @property
    def can_drop(self) -> bool: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def drop(self) -> None:
        """Lose everything that the two machines send each other, without an error at either."""

    def restore(self) -> None:
        """Deliver again what they send."""


class Loopback:
    """Both machines are this one."""

    first = second = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    can_drop = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def drop(self) -> None:
        raise NoNamespaces("this link cannot be dropped")

    def restore(self) -> None:
        pass


class NamespaceLink:
    """A network namespace that a pair of virtual interfaces joins to this machine; removed at the end of the block.

    Each side is told that its neighbour has the address `NOBODY`, so that packets get lost on the way: an interface
    that is taken down would make the kernel answer with errors at once, which a broken cable does not.
    """

    can_drop = True

    def __init__(self) -> None:
        number = f"{os.getpid()}{next(_NUMBERS)}"
        self._name = f"pairing-{number}"
        self._near, self._far = f"pa{number}"[:15], f"pb{number}"[:15]
        third, fourth = random.randrange(1, 255), 4 * random.randrange(1, 63)
        self.first, self.second = f"10.213.{third}.{fourth + 1}", f"10.213.{third}.{fourth + 2}"
        self.prefix = ("ip", "netns", "exec", self._name)

    def __enter__(self) -> Self:
        try:
            run_ip("netns", "add", self._name)
            run_ip("link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", self._name)
            run_ip("addr", "add", f"{self.first}/30", "dev", self._near)
            run_ip("link", "set", self._near, "up")
            self._ip_at_second("addr", "add", f"{self.second}/30", "dev", self._far)
            self._ip_at_second("link", "set", self._far, "up")
            self._ip_at_second("link", "set", "lo", "up")
        except NoNamespaces:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for words in (("link", "del", self._near), ("netns", "del", self._name)):
            with suppress(NoNamespaces):
                run_ip(*words)

    def _ip_at_second(self, *words: str) -> None:
        run_ip("-n", self._name, *words)

    def drop(self) -> None:
        """Lose everything that the two machines send each other, without an error at either."""
        run_ip("neigh", "replace", self.second, "lladdr", NOBODY, "dev", self._near, "nud", "permanent")
        self._ip_at_second(
            "neigh", "replace", self.first, "lladdr", NOBODY, "dev", self._far, "nud", "permanent"
        )

    def restore(self) -> None:
        """Deliver again what they send."""
        near, far = self._hardware_address(self._near), self._hardware_address(self._far, "-n", self._name)
        run_ip("neigh", "replace", self.second, "lladdr", far, "dev", self._near, "nud", "permanent")
        self._ip_at_second(
            "neigh", "replace", self.first, "lladdr", near, "dev", self._far, "nud", "permanent"
        )

    def _hardware_address(self, interface: str, *options: str) -> str:
        links: list[dict[str, Any]] = json.loads(run_ip("-j", *options, "link", "show", interface))
        return str(links[0]["address"])


def open_network() -> NamespaceLink | Loopback:
    """Return a network with a link that can be dropped, if this machine can have one."""
    try:
        with NamespaceLink():
            return NamespaceLink()
    except NoNamespaces:
        return Loopback()


def run_ip(*words: str) -> str:
    try:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        raise NoNamespaces(f"ip cannot be run: {error}") from error
    if done.returncode:
        raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
