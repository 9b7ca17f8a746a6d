"""A broker name in the route table: its members, the queues of its topics, its static topics.

Routes share the objects that hold queues, so nobody changes one: a changed permission makes a copy.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from codec.constants import MASTER_ID
from codec.topics import PERM_WRITE, READ_WRITE
from gateway.namesrv.addresses import address_for
from remoting.bodies.queues import DataVersion
from remoting.bodies.routes import BrokerData, QueueData, TopicQueueMappingInfo


@dataclass(slots=True)
class Member:
    """One registered address; ``heard_at`` in seconds of the monotonic clock. A local member never expires."""

    address: str
    cluster: str
    ha_address: str
    heard_at: float
    timeout_ms: float
    data_version: DataVersion
    owner: object | None
    is_local: bool
    filter_servers: list[str]
    replicates: bool
    is_elected: bool = False

    def address_for(self, local_host: str) -> str:
        """Return the address for a client that reached this server at ``local_host``."""
        return address_for(self.address, local_host) if self.is_local else self.address

    def ha_address_for(self, local_host: str) -> str:
        """Return the address of the HA port for a replica that reached this server at ``local_host``."""
        return address_for(self.ha_address, local_host) if self.is_local else self.ha_address


@dataclass(slots=True, eq=False)
class RegisteredBroker:
    """A broker name with its members by broker id, the queues of its topics, and its static topics."""

    name: str
    members: dict[int, Member] = field(default_factory=dict)
    queues: dict[str, QueueData] = field(default_factory=dict)
    mappings: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False
    alone: dict[str, "RegisteredBroker"] = field(init=False)
    """This broker by its name: the shared, never changed holders of every topic that no other broker has."""

    def __post_init__(self) -> None:
        self.alone = {self.name: self}

    @property
    def cluster(self) -> str:
        """The cluster of the master, or of the member that registered first."""
        member = self.members.get(MASTER_ID) or next(iter(self.members.values()))
        return member.cluster

    @property
    def has_local_member(self) -> bool:
        return any(member.is_local for member in self.members.values())

    @property
    def has_local_master(self) -> bool:
        master = self.members.get(MASTER_ID)
        return master is not None and master.is_local

    def to_data(self, local_host: str) -> BrokerData:
        """Return the name and addresses for a client that reached this server at ``local_host``."""
        return BrokerData(
            cluster=self.cluster,
            broker_name=self.name,
            broker_addrs=self.addresses_for(local_host),
            zone_name=self.zone_name,
            enable_acting_master=self.enable_acting_master,
        )

    def addresses_for(self, local_host: str) -> dict[int, str]:
        return {
            broker_id: member.address_for(local_host) for broker_id, member in sorted(self.members.items())
        }

    def replace_queues(self, change: Callable[[QueueData], QueueData]) -> None:
        """Replace the queues of every topic; topics that shared an object do so afterwards."""
        changed: dict[int, QueueData] = {}  # by `id` of the present object
        for topic, queues in self.queues.items():
            replacement = changed.get(id(queues))
            if replacement is None:
                replacement = changed[id(queues)] = change(queues)
            self.queues[topic] = replacement

    def ids_at(self, address: str) -> list[int]:
        """Return the ids of the members with an address: at most one."""
        return [broker_id for broker_id, member in self.members.items() if member.address == address]

    def shown_parts(self, member: Member | None) -> object:
        """Return what answers show of a member and of its broker name, for comparison."""
        if member is None:
            return None
        return (
            self.zone_name,
            self.enable_acting_master,
            member.address,
            member.cluster,
            member.is_local,
            member.filter_servers,
        )


def weight_of(mapping: TopicQueueMappingInfo) -> int:
    """Return the weight of a static topic in the limit of topics: one, and one for each of its queues."""
    return 1 + len(mapping.curr_id_map)


def is_same(queues: QueueData, other: QueueData) -> bool:
    """Compare the queues of one broker; eight times as fast as the comparison of any two bodies."""
    return queues is other or (
        queues.read_queue_nums == other.read_queue_nums
        and queues.write_queue_nums == other.write_queue_nums
        and queues.perm == other.perm
        and queues.topic_sys_flag == other.topic_sys_flag
    )


def with_perm(queues: QueueData, perm: int) -> QueueData:
    """Return the queues with a permission; the same object if it has it already."""
    if queues.perm == perm:
        return queues
    return QueueData(
        broker_name=queues.broker_name,
        read_queue_nums=queues.read_queue_nums,
        write_queue_nums=queues.write_queue_nums,
        perm=perm,
        topic_sys_flag=queues.topic_sys_flag,
    )


def without_write(queues: QueueData) -> QueueData:
    """Return the queues closed to producers."""
    return with_perm(queues, queues.perm & ~PERM_WRITE)


def with_write(queues: QueueData) -> QueueData:
    """Return the queues open to producers and consumers."""
    return with_perm(queues, READ_WRITE)
