"""The faults: each happens to a running cluster and puts its end on a stack."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from tools.failovers.cluster import BrokerMember, FailoverCluster, send_signal

Inject = Callable[[FailoverCluster, BrokerMember, ExitStack], None]
"""Makes the fault happen to the cluster and its master; what ends it goes onto the stack."""
RESTART_S: Final = 2.0
"""Time after which a part is started again without which nobody can be elected."""


@dataclass(frozen=True, slots=True)
class ClusterFault:
    """A fault. One that `replaces_master` lasts until another broker accepts messages, others for `hold_s`.

    `is_master_alive`: the former master goes on, or wakes up, after another one was elected.
    """

    name: str
    inject: Inject
    replaces_master: bool = False
    is_master_alive: bool = False
    hold_s: float = 0.0
    needs_network: bool = False
    needs_etcd: bool = False
    needs_controllers: int = 1

    def is_possible(self, cluster: FailoverCluster) -> bool:
        """Tell whether a cluster has what the fault happens to."""
        controllers = cluster.controllers
        return (
            (cluster.machines.can_cut or not self.needs_network)
            and (controllers.etcd is not None or not self.needs_etcd)
            and controllers.kind.count >= self.needs_controllers
        )


def _kill_master(_cluster: FailoverCluster, master: BrokerMember, end: ExitStack) -> None:
    master.kill()
    end.callback(master.start)


def _stop_master(_cluster: FailoverCluster, master: BrokerMember, end: ExitStack) -> None:
    pids = master.pids()
    send_signal(pids, signal.SIGSTOP)
    end.callback(send_signal, pids, signal.SIGCONT)


def _cut(cluster: FailoverCluster, machine: str, others: Sequence[str], end: ExitStack) -> None:
    end.callback(cluster.join, machine, others)
    cluster.cut_off(machine, others)


def _cut_master_off(cluster: FailoverCluster, master: BrokerMember, end: ExitStack) -> None:
    _cut(cluster, master.machine, cluster.machine_names, end)


def _cut_master_from_controllers(cluster: FailoverCluster, master: BrokerMember, end: ExitStack) -> None:
    _cut(cluster, master.machine, cluster.controllers.machines, end)


def _kill_replica(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    replica = cluster.slaves()[0]
    replica.kill()
    end.callback(replica.start)


def _stop_replica(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    _stop_master(cluster, cluster.slaves()[0], end)


def _cut_replica_off(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    _cut(cluster, cluster.slaves()[0].machine, cluster.machine_names, end)


def _kill_replicas(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    for replica in cluster.slaves():
        replica.kill()
        end.callback(replica.start)


def _kill_controller(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    index = cluster.controllers.leader()
    cluster.controllers.kill(index)
    end.callback(cluster.controllers.start, index)


def _stop_controller(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    index = cluster.controllers.leader()
    cluster.controllers.suspend(index)
    end.callback(cluster.controllers.resume, index)


def _cut_controller_off(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    machine = cluster.controllers.machines[cluster.controllers.leader()]
    _cut(cluster, machine, cluster.machine_names, end)


def _kill_master_and_controller(cluster: FailoverCluster, master: BrokerMember, end: ExitStack) -> None:
    controllers = cluster.controllers
    index = controllers.leader()
    controllers.kill(index)
    master.kill()
    end.callback(master.start)
    if controllers.kind.count == 1:
        time.sleep(RESTART_S)
        controllers.start(index)
    else:
        end.callback(controllers.start, index)


def _stop_master_and_controller(cluster: FailoverCluster, master: BrokerMember, end: ExitStack) -> None:
    _stop_controller(cluster, master, end)
    _stop_master(cluster, master, end)


def _kill_all_brokers(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    for broker in cluster.brokers:
        broker.kill()
        end.callback(broker.start)


def _kill_etcd_leader(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    etcd = cluster.controllers.etcd
    assert etcd is not None
    index = etcd.leader() or 0
    etcd.kill(index)
    end.callback(etcd.start, index)


def _stop_etcd_leader(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    etcd = cluster.controllers.etcd
    assert etcd is not None
    index = etcd.leader() or 0
    etcd.stop(index)
    end.callback(etcd.resume, index)


def _kill_master_and_etcd_leader(cluster: FailoverCluster, master: BrokerMember, end: ExitStack) -> None:
    _kill_etcd_leader(cluster, master, end)
    _kill_master(cluster, master, end)


def _stop_etcd_majority(cluster: FailoverCluster, _master: BrokerMember, end: ExitStack) -> None:
    etcd = cluster.controllers.etcd
    assert etcd is not None
    for index in range(2):
        etcd.stop(index)
        end.callback(etcd.resume, index)


FAULTS: Final = (
    ClusterFault("master killed", _kill_master, replaces_master=True),
    ClusterFault("master stopped", _stop_master, replaces_master=True, is_master_alive=True),
    ClusterFault(
        "master cut off", _cut_master_off, replaces_master=True, is_master_alive=True, needs_network=True
    ),
    ClusterFault(
        "master cut from controllers",
        _cut_master_from_controllers,
        replaces_master=True,
        is_master_alive=True,
        needs_network=True,
    ),
    ClusterFault("master and controller killed", _kill_master_and_controller, replaces_master=True),
    ClusterFault(
        "master and controller stopped",
        _stop_master_and_controller,
        replaces_master=True,
        is_master_alive=True,
        needs_controllers=3,
    ),
    ClusterFault(
        "master and etcd's leader killed",
        _kill_master_and_etcd_leader,
        replaces_master=True,
        needs_etcd=True,
    ),
    ClusterFault("controller killed", _kill_controller, hold_s=4.0),
    ClusterFault("controller stopped", _stop_controller, hold_s=8.0),
    ClusterFault(
        "controller cut off", _cut_controller_off, hold_s=15.0, needs_network=True, needs_controllers=3
    ),
    ClusterFault("etcd's leader killed", _kill_etcd_leader, hold_s=5.0, needs_etcd=True),
    ClusterFault("etcd's leader stopped", _stop_etcd_leader, hold_s=12.0, needs_etcd=True),
    ClusterFault("etcd without majority", _stop_etcd_majority, hold_s=20.0, needs_etcd=True),
    ClusterFault("replica killed", _kill_replica, hold_s=20.0),
    ClusterFault("replica stopped", _stop_replica, hold_s=20.0),
    ClusterFault("replica cut off", _cut_replica_off, hold_s=20.0, needs_network=True),
    ClusterFault("both replicas killed", _kill_replicas, hold_s=25.0),
    ClusterFault("all brokers killed", _kill_all_brokers, hold_s=0.5),
)
FAULTS_BY_NAME: Final = {fault.name: fault for fault in FAULTS}
