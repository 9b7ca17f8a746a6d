"""Private requests about the role of a broker among the replicas of its name. Official brokers do not know their codes.

`rmq-gateway broker status`, `promote` and `demote` send them, and a master that hands over to a slave.
"""

from remoting.declare import Header, Request, i32, i64
from remoting.fields import field
from remoting.json_body import JsonBody


class ConnectedSlave(JsonBody):
    """A slave as its master sees it: the end of what it has acknowledged, and the bytes that it is behind."""

    address: str
    acknowledged: i64
    behind_bytes: i64


class BrokerRoleStatus(JsonBody):
    """The role of a broker, and how far its log goes.

    ``state`` says in words how that goes, ``reason`` why something is wrong, "" if nothing is. ``master_address`` is
    where a slave's master answers requests, "" while unknown. ``behind_bytes`` is -1 while a slave does not know the
    end of its master's log, and at a master. ``is_serving`` is False while the role changes, and for a fenced broker.
    ``hand_over_id`` is that of the order with which a master has a slave promoted now, "" if it does not.
    ``master_role`` is the brokerRole of a slave's master, "" while unknown.
    """

    broker_name: str
    cluster: str
    broker_id: i64
    broker_role: str
    is_serving: bool
    state: str
    reason: str = ""
    log_start: i64 = 0
    log_end: i64 = 0
    behind_bytes: i64 = -1
    master_address: str = ""
    ha_port: i32 = 0
    hand_over_id: str = ""
    master_role: str = ""
    slaves: list[ConnectedSlave] = field(factory=list)


class BrokerRoleReply(Header):
    """The role after the request."""

    data: BrokerRoleStatus


class GetBrokerRole(Request[BrokerRoleReply], code=770_020):
    """Return the role of a broker. A broker that is fenced answers as well."""


class ChangeBrokerRole(Request[BrokerRoleReply], code=770_021):
    """Make a slave a master, or a master a slave; the answer comes when the broker serves in its new role.

    A slave takes over only if its master does not answer, unless ``force`` is true. ``log_end`` is sent by a master
    that hands over: the slave copies the tables once more, and refuses if its log does not end there, or if its master
    does not say any more that it hands over by the order with this ``hand_over_id``. A master becomes
    a slave only if another master of its name is registered, unless ``force`` is true. ``ha_master_address`` is what it
    follows then, "" for the one that its namesrv names.
    """

    broker_role: str
    broker_id: i64
    force: bool = False
    log_end: i64 | None = None
    hand_over_id: str = ""
    ha_master_address: str = ""


class HandOverBroker(Request[BrokerRoleReply], code=770_022):
    """Have a master hand over to one of its slaves, whose host:port is ``slave_address``, and become a slave itself.

    ``timeout_millis`` bounds the time in which the slave has to catch up. A master under a controller has that elect
    the slave.
    """

    slave_address: str
    timeout_millis: i64 = 10_000


class CopyTables(Request[None], code=770_023):
    """Have a slave copy its master's tables; the answer comes when it has them. Sent by a master that hands over."""
