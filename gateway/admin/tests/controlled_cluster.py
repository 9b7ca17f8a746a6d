"""A cluster under a controller in memory: what its servers answer to commands, by the rules of our controller."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from codec.constants import ResponseCode
from gateway.admin.client import MASTER_ID, AdminClient
from gateway.admin.errors import NotReached, Refused
from gateway.controller import rules
from gateway.controller.broker_set import BrokerSet
from gateway.controller.election import key_of
from gateway.controller.liveness import Heartbeat, Liveness
from remoting.bodies.ha import EpochEntry, EpochEntryCache
from remoting.bodies.routes import BrokerData, ClusterInfo
from remoting.bodies.topics import KVTable
from remoting.declare import Header, Request
from remoting.errors import RequestError
from remoting.requests.admin import (
    GetBrokerConfig,
    GetBrokerConfigReply,
    GetBrokerRuntimeInfo,
    GetBrokerRuntimeInfoReply,
)
from remoting.requests.controller import (
    ControllerElectMaster,
    ControllerGetMetadataInfo,
    ControllerGetMetadataInfoReply,
    ControllerGetSyncStateData,
    ControllerGetSyncStateDataReply,
    GetControllerConfig,
)
from remoting.requests.ha import GetBrokerEpochCache, GetBrokerEpochCacheReply
from remoting.requests.namesrv import GetBrokerClusterInfo, GetBrokerClusterInfoReply
from remoting.requests.roles import BrokerRoleReply, BrokerRoleStatus, GetBrokerRole, HandOverBroker

CLUSTER, NAME = "C", "broker-a"
CONTROLLERS = ("c0:9878", "c1:9878", "c2:9878")


def address_of(broker_id: int) -> str:
    return f"h{broker_id}:10911"


@dataclass
class ControlledCluster:
    """Replicas 1 to 3 of one broker name, of which 1 is master; a namesrv; three controllers, of which the first leads.

    ``logs`` has epoch and end of each replica's log, ``dead`` are replicas without heartbeats, ``down`` are addresses
    that do not answer.
    """

    logs: dict[int, tuple[int, int]] = field(default_factory=lambda: {1: (3, 900), 2: (3, 900), 3: (3, 900)})
    sync_set: tuple[int, ...] = (1, 2, 3)
    dead: set[int] = field(default_factory=set)
    down: set[str] = field(default_factory=set)
    priorities: dict[int, int] = field(default_factory=dict)
    unclean: bool = False
    controlled: bool = True
    leader: str | None = CONTROLLERS[0]
    master: int | None = 1
    runtime: dict[int, Mapping[str, str]] = field(default_factory=dict)
    registers: bool = True
    reasons: dict[int, str] = field(default_factory=dict)
    """Why brokers of this project are not well; other brokers are official ones."""
    hands_over: bool = False
    requests: list[tuple[str, Request[Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        broker_set = BrokerSet(CLUSTER, NAME)
        for broker_id in self.logs:
            broker_set = broker_set.with_replica(broker_id, address_of(broker_id), str(broker_id))
        broker_set = broker_set.with_master(1).with_sync_set(self.sync_set)
        self.broker_set = broker_set if self.master is not None else broker_set.without_master()
        self.registered_master = self.master

    @property
    def liveness(self) -> Liveness:
        liveness = Liveness(lambda: 0.0)
        for broker_id, (epoch, log_end) in self.logs.items():
            if broker_id not in self.dead:
                priority = self.priorities.get(broker_id, (1 << 31) - 1)
                heartbeat = Heartbeat(
                    address_of(broker_id), epoch=epoch, max_offset=log_end, election_priority=priority
                )
                liveness.record(key_of(self.broker_set, broker_id), heartbeat)
        return liveness

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let all clients of commands ask this cluster."""

        def ask(client: AdminClient, address: str, request: Request[Any], **more: Any) -> Any:
            return self.answer(address, request)

        monkeypatch.setattr(AdminClient, "ask", ask)

    def answer(self, address: str, request: Request[Any]) -> Header:
        self.requests.append((address, request))
        if address in self.down:
            raise NotReached(f"broker {address} cannot be reached: connection refused.", "connection refused")
        try:
            reply = self._answer(address, request)
            if reply.code not in request.ACCEPT_CODES:
                raise RequestError(reply.code, reply.remark)
        except RequestError as error:
            raise Refused(address, request, error.code, error.remark) from error
        return reply

    def _answer(self, address: str, request: Request[Any]) -> Header:
        if isinstance(request, GetBrokerClusterInfo):
            return GetBrokerClusterInfoReply(data=self._cluster_info())
        if address in CONTROLLERS:
            return self._controller_answer(address, request)
        broker_id = next((key for key in self.logs if address_of(key) == address), 0)
        if isinstance(request, GetBrokerConfig):
            return GetBrokerConfigReply(version="{}", body=self._config(broker_id))
        if isinstance(request, GetBrokerRuntimeInfo):
            return GetBrokerRuntimeInfoReply(
                data=KVTable(table={"brokerVersionDesc": "V5_4_0", **self.runtime.get(broker_id, {})})
            )
        if isinstance(request, GetBrokerEpochCache):
            epoch, log_end = self.logs[broker_id]
            entries = [EpochEntry(epoch=number, start_offset=number) for number in range(1, epoch + 1)]
            return GetBrokerEpochCacheReply(data=EpochEntryCache(epoch_list=entries, max_offset=log_end))
        if isinstance(request, GetBrokerRole) and broker_id in self.reasons:
            return BrokerRoleReply(data=self._role(broker_id))
        if isinstance(request, HandOverBroker) and self.hands_over:
            (successor,) = (key for key in self.logs if address_of(key) == request.slave_address)
            self.broker_set = self.broker_set.with_master(successor)
            self.registered_master = successor
            return BrokerRoleReply(data=self._role(broker_id))
        raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"{request.NAME} not supported")

    def _role(self, broker_id: int) -> BrokerRoleStatus:
        return BrokerRoleStatus(
            broker_name=NAME, cluster=CLUSTER, broker_id=broker_id, broker_role="SLAVE", is_serving=True,
            state="copying", reason=self.reasons.get(broker_id, ""),
        )  # fmt: skip

    def _cluster_info(self) -> ClusterInfo:
        addresses = {broker_id: address_of(broker_id) for broker_id in self.logs}
        if self.registered_master is not None:
            addresses[MASTER_ID] = addresses.pop(self.registered_master)
        data = BrokerData(cluster=CLUSTER, broker_name=NAME, broker_addrs=addresses)
        return ClusterInfo(broker_addr_table={NAME: data}, cluster_addr_table={CLUSTER: [NAME]})

    def _config(self, broker_id: int) -> bytes:
        values = {
            "brokerName": NAME,
            "brokerClusterName": CLUSTER,
            "enableControllerMode": str(self.controlled).lower(),
            "controllerAddr": ";".join(CONTROLLERS),
            "brokerElectionPriority": str(self.priorities.get(broker_id, (1 << 31) - 1)),
        }
        return "".join(f"{key}={value}\n" for key, value in values.items()).encode()

    def _controller_answer(self, address: str, request: Request[Any]) -> Header:
        if isinstance(request, ControllerGetMetadataInfo):
            return ControllerGetMetadataInfoReply(
                group="g",
                controller_leader_id=None,
                controller_leader_address=self.leader,
                is_leader=address == self.leader,
                peers="".join(f"n{index}:{peer};" for index, peer in enumerate(CONTROLLERS)),
            )
        if address != self.leader:
            raise RequestError(ResponseCode.CONTROLLER_NOT_LEADER, "The controller is not in leader state")
        if isinstance(request, GetControllerConfig):
            return Header(body=f"enableElectUncleanMaster={str(self.unclean).lower()}\n".encode())
        if isinstance(request, ControllerGetSyncStateData):
            sets = {NAME: self.broker_set} if NAME in orjson.loads(request.body) else {}
            return ControllerGetSyncStateDataReply(data=rules.replicas_of(sets, self.liveness))
        assert isinstance(request, ControllerElectMaster)
        ruling = rules.elect_master(self.broker_set, request, self.liveness, may_be_unclean=self.unclean)
        assert ruling.broker_set is not None
        self.broker_set = ruling.broker_set
        if self.registers:
            self.registered_master = ruling.broker_set.master_id
        return ruling.answer
