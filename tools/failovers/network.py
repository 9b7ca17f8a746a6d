"""Machines of a cluster: a network namespace each, joined by a bridge, where any two may lose sight of each other.

Needs root and Linux. Where that is missing, `OneMachine` has all machines at 127.0.0.1, and nothing can be cut.
"""

import itertools
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, Self

from tools.pairings.network import NOBODY, NoNamespaces, run_ip

CLIENTS: Final = "clients"
"""The machine of this program, its clients and the namesrv."""
_NUMBERS = itertools.count(1)


class Machines(Protocol):
    """Named machines; programs run on one by its prefix."""

    @property
    def can_cut(self) -> bool: ...

    def host(self, name: str) -> str:
        """Return the address of a machine."""

    def prefix(self, name: str) -> tuple[str, ...]:
        """Return the words before the command line of a program on that machine."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def cut(self, first: str, second: str) -> None:
        """Lose everything that two machines send each other, without an error at either."""

    def join(self, first: str, second: str) -> None:
        """Deliver again what they send."""


class OneMachine:
    """All machines are this one."""

    can_cut = False

    def host(self, name: str) -> str:
        return "127.0.0.1"

    def prefix(self, name: str) -> tuple[str, ...]:
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def cut(self, first: str, second: str) -> None:
        raise NoNamespaces("nothing can be cut on one machine")

    def join(self, first: str, second: str) -> None:
        pass


class BridgedMachines:
    """Network namespaces at a bridge of this machine; removed at the end of the block.

    Two machines are cut by telling each that the other one has the hardware address `NOBODY`: packets get lost on the
    way, as with a broken switch. An interface that is taken down would make the kernel answer with errors at once.
    """

    can_cut = True

    def __init__(self, names: Sequence[str]) -> None:
        self._number = f"{os.getpid()}{next(_NUMBERS)}"
        self._network = f"10.214.{random.randrange(1, 255)}"
        self._hosts = {name: f"{self._network}.{number}" for number, name in enumerate(names, 11)}
        self._hosts[CLIENTS] = f"{self._network}.1"
        self._bridge = f"fb{self._number}"[:15]

    def host(self, name: str) -> str:
        return self._hosts[name]

    def prefix(self, name: str) -> tuple[str, ...]:
        return () if name == CLIENTS else ("ip", "netns", "exec", self._namespace(name))

    def _namespace(self, name: str) -> str:
        return f"failover-{self._number}-{name}"

    def _near_interface(self, name: str) -> str:
        return f"f{self._number}-{name}"[:15]

    def _machine_names(self) -> list[str]:
        return [name for name in self._hosts if name != CLIENTS]

    def __enter__(self) -> Self:
        try:
            run_ip("link", "add", self._bridge, "type", "bridge")
            run_ip("addr", "add", f"{self._hosts[CLIENTS]}/24", "dev", self._bridge)
            run_ip("link", "set", self._bridge, "up")
            for name in self._machine_names():
                self._add_machine(name)
        except NoNamespaces:
            self._remove()
            raise
        return self

    def _add_machine(self, name: str) -> None:
        namespace, near = self._namespace(name), self._near_interface(name)
        run_ip("netns", "add", namespace)
        run_ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        run_ip("link", "set", near, "master", self._bridge, "up")
        run_ip("-n", namespace, "addr", "add", f"{self._hosts[name]}/24", "dev", "eth0")
        run_ip("-n", namespace, "link", "set", "eth0", "up")
        run_ip("-n", namespace, "link", "set", "lo", "up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for name in self._machine_names():
            with suppress(NoNamespaces):
                run_ip("link", "del", self._near_interface(name))
            with suppress(NoNamespaces):
                run_ip("netns", "del", self._namespace(name))
        with suppress(NoNamespaces):
            run_ip("link", "del", self._bridge)

    def cut(self, first: str, second: str) -> None:
        """Lose everything that two machines send each other, without an error at either."""
        for near, far in ((first, second), (second, first)):
            words = ("replace", self._hosts[far], "lladdr", NOBODY, "dev", self._device(near))
            self._ip_at(near, "neigh", *words, "nud", "permanent")

    def join(self, first: str, second: str) -> None:
        """Deliver again what they send: each asks for the other's hardware address once more."""
        for near, far in ((first, second), (second, first)):
            self._ip_at(near, "neigh", "del", self._hosts[far], "dev", self._device(near))

    def _device(self, name: str) -> str:
        return self._bridge if name == CLIENTS else "eth0"

    def _ip_at(self, name: str, *words: str) -> None:
        if name == CLIENTS:
            run_ip(*words)
        else:
            run_ip("-n", self._namespace(name), *words)


def open_machines(names: Sequence[str]) -> BridgedMachines | OneMachine:
    """Return machines that can be cut from each other, if this machine can have such."""
    try:
        with BridgedMachines(["try"]):
            return BridgedMachines(names)
    except NoNamespaces:
        return OneMachine()
