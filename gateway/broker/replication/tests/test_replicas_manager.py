"""A master that was started again: what it makes of the answers to its registration."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gateway.broker.replication.controller_links import NoLeader
from gateway.broker.replication.replicas_manager import MasterTerm, ReplicasManager, RoleHints
from remoting.declare import Request
from remoting.requests.controller import (
    ControllerElectMaster,
    ControllerElectMasterReply,
    ControllerGetReplicaInfo,
    ControllerGetReplicaInfoReply,
    ControllerRegisterBroker,
    ControllerRegisterBrokerReply,
)

OWN_ID, OTHER_ID = 1, 2


def link() -> Any:
    return SimpleNamespace(
        connection=SimpleNamespace(local=("127.0.0.1", 1)), heartbeat_sent_s=1.0, is_open=True
    )


class Links:
    """Controllers whose answers a test sets: the master as registrations and elections name it."""

    def __init__(self) -> None:
        self.leader = link()
        self.trouble = ""
        self.registered: tuple[int, int] | None = None
        self.elected = (OTHER_ID, 4)
        self.epoch = 3
        self.changes_at_heartbeat = False
        self.asked: list[type[Request[Any]]] = []

    def wake(self) -> None:
        if self.changes_at_heartbeat:
            self.leader = link()

    async def wait_for_leader(self) -> Any:
        return self.leader

    async def ask_leader(self, request: Request[Any]) -> Any:
        self.asked.append(type(request))
        if isinstance(request, ControllerGetReplicaInfo):
            return ControllerGetReplicaInfoReply(master_epoch=self.epoch)
        if isinstance(request, ControllerElectMaster):
            broker_id, epoch = self.elected
            return ControllerElectMasterReply(
                master_broker_id=broker_id, master_address="h:1", master_epoch=epoch
            )
        assert isinstance(request, ControllerRegisterBroker)
        if self.registered is None:
            return ControllerRegisterBrokerReply()
        broker_id, epoch = self.registered
        return ControllerRegisterBrokerReply(
            master_broker_id=broker_id, master_address="h:1", master_epoch=epoch
        )


def manager_of(links: Links) -> ReplicasManager:
    config = SimpleNamespace(
        broker_cluster_name="C",
        broker_name="a",
        broker_ip="127.0.0.1",
        advertised_port=1,
        listen_port=1,
        replication=SimpleNamespace(controller_heartbeat_timeout_ms=10_000, broker_election_priority=1),
    )
    state = SimpleNamespace(epoch=3, max_offset=0, confirm_offset=0)
    broker: Any = SimpleNamespace(config=config, log_state=state)
    nothing: Any = None
    fake_links: Any = links
    manager = ReplicasManager(broker, fake_links, nothing, nothing, RoleHints(), nothing, lambda: 0)
    manager._broker_id = OWN_ID
    return manager


def find_term(manager: ReplicasManager) -> MasterTerm | None:
    return trio.run(manager._find_term)


def test_a_broker_that_the_controller_takes_for_the_living_master_lets_it_notice_its_end() -> None:
    links = Links()
    manager = manager_of(links)
    links.registered = OWN_ID, 3
    assert find_term(manager) is None
    assert manager.heartbeat_over(links.leader.connection) is None
    links.registered = None
    term = find_term(manager)
    assert term is not None
    assert (term.master_id, term.epoch) == (OTHER_ID, 4)
    assert manager.heartbeat_over(links.leader.connection) is not None
    # A controller that has begun to lead hears its heartbeats, and does not know that it was started again.
    links.registered = OWN_ID, 3
    assert find_term(manager) is None
    assert manager.heartbeat_over(links.leader.connection) is None


def test_a_master_that_was_started_again_obeys_an_election_since_its_registration() -> None:
    links = Links()
    manager = manager_of(links)
    find_term(manager)
    links.registered, links.asked = (OWN_ID, 4), []
    term = find_term(manager)
    assert term is not None
    assert (term.master_id, term.epoch) == (OWN_ID, 4)
    assert links.asked == [ControllerRegisterBroker]
    assert manager.heartbeat_over(links.leader.connection) is not None


def test_no_election_is_asked_for_at_another_controller_than_the_one_of_the_registration() -> None:
    links = Links()
    manager = manager_of(links)
    links.changes_at_heartbeat = True
    with pytest.raises(NoLeader, match="another controller leads"):
        find_term(manager)
    assert ControllerElectMaster not in links.asked
