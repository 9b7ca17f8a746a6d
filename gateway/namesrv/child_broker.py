"""A broker process of the namesrv's own server: it registers by request, but counts as a broker of this process.

Theory of operation
-------------------
A broker process has a control channel to its supervisor, which runs the namesrv. The channel is a socket pair that the
process inherits, so its requests can only come from that process: no secret is needed. The supervisor puts a
`ChildBroker` into the state of the channel's connection, where the handlers of registrations find it.

Like every remote broker, a broker process sends its whole topic table each time. As for brokers in this process, only
topics that changed since its previous registration, and those that the namesrv lacks, are registered again. Otherwise
the next registration would bring back the write permission that an administrator removed in the namesrv.

While a process runs, the route table protects its name like that of any local broker. While it restarts, it is not
registered, so that clients use other brokers; `ChildBrokers` reserves its name meanwhile, unless a controller decides
which broker of the name is the master: it may elect another one just because this process is gone.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import trio

from codec.constants import MASTER_ID
from gateway.config.process import LOOPBACK
from gateway.namesrv.registration import Registration, refused
from gateway.namesrv.route_table import RegistrationResult, RouteTable
from remoting.bodies.routes import QueueData
from remoting.connection import Connection
from remoting.connection_state import StateSlot

_CHILD_BROKER: Final = StateSlot["ChildBroker"]("child broker")


class ChildBroker:
    """The registration of one broker process, made over one connection and removed when that closes."""

    def __init__(
        self,
        routes: RouteTable,
        broker_name: str,
        broker_id: int,
        replicas: "list[ChildBroker]",
        *,
        is_elected: bool = False,
    ) -> None:
        """``replicas`` are all broker processes of this name; ``is_elected``: a controller decides their roles."""
        self.is_elected = is_elected
        self._routes = routes
        self._replicas = replicas
        self._broker_name = broker_name
        self._broker_id = broker_id
        self._registered: Mapping[str, QueueData] = {}
        self.address = ""
        """The address of the last registration, ``auto:port`` without a host of its own; empty before the first."""
        self.registered = trio.Event()
        """Set while the broker is registered; replaced by a new event when it no longer is."""

    def attach(self, connection: Connection) -> None:
        """Take the registrations of this connection for the broker's; remove the broker when the connection closes."""
        connection.state[_CHILD_BROKER] = self
        connection.on_close(lambda _: self.unregister())

    @staticmethod
    def of_connection(connection: Connection) -> "ChildBroker | None":
        """Return the broker process at the other end of a connection; None for any other peer."""
        return connection.state.get(_CHILD_BROKER)

    def register(self, registration: Registration) -> RegistrationResult:
        """Add or renew the broker as a local one. Raises RequestError for another broker's name or id.

        The id is another one after a change of role.
        """
        if registration.broker_name != self._broker_name:
            raise refused(f"this channel belongs to {self._broker_name}")
        for replica in self._replicas:
            is_registered = replica is not self and replica.registered.is_set()
            if is_registered and replica._broker_id == registration.broker_id:
                raise refused(
                    f"another broker process has the name {self._broker_name} and the id {registration.broker_id}"
                )
        if registration.broker_id != self._broker_id:
            self._registered = {}
            self._broker_id = registration.broker_id
        missing = self._routes.missing_topics(registration.broker_name, registration.queues)
        changed_queues = {
            topic: queues
            for topic, queues in registration.queues.items()
            if topic in missing or queues != self._registered.get(topic)
        }
        self._registered = registration.queues
        self.address = registration.address
        # Replicas of its name are processes of the same server, or reach it by this host's own address.
        result = self._routes.register_local(
            replace(registration, queues=changed_queues, is_elected=self.is_elected),
            registration.queues,
            LOOPBACK,
        )
        self.registered.set()
        return result

    def unregister(self) -> None:
        """Remove the broker; its name stays reserved."""
        self._registered = {}
        self.registered = trio.Event()
        self._routes.unregister_local(self._broker_name, self._broker_id)


class ChildBrokers:
    """All broker processes of the namesrv's server, including those that are not registered now."""

    def __init__(self, routes: RouteTable) -> None:
        self._routes = routes
        self._children: dict[str, list[ChildBroker]] = {}

    def add(self, broker_name: str, broker_id: int, *, is_elected: bool = False) -> ChildBroker:
        """Reserve a name for a broker process, until the namesrv ends."""
        replicas = self._children.setdefault(broker_name, [])
        child = ChildBroker(self._routes, broker_name, broker_id, replicas, is_elected=is_elected)
        replicas.append(child)
        return child

    def check_not_reserved(self, registration: Registration) -> None:
        """Raise RequestError if the name belongs to a broker process that is restarting, and a master claims it."""
        children = self._children.get(registration.broker_name, [])
        is_starting = any(not child.registered.is_set() and not child.is_elected for child in children)
        if is_starting and registration.broker_id == MASTER_ID:
            raise refused(
                f"{registration.broker_name} is a broker process of this namesrv's server, which is being started; "
                f"{registration.address} needs another brokerName"
            )
