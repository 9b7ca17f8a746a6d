"""`store repair --from`: damage of one replica is fetched from the other, ours and official, until logs are equal."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from acceptance.test_cluster import BROKERS
from acceptance.test_official_masters import FILE_BYTES, fill
from acceptance.test_official_masters import pair as official_pair
from acceptance.test_roles import QUEUES, TOPIC, Pair, Senders, assert_nothing_lost, same_log
from acceptance.test_store_tools import run_store
from compat_tests.clients.typed import connect, has_route, send_many, topic_request
from compat_tests.server import eventually
from tools.processes import environment


def repair(home: Path, store: Path, replica: str, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "gateway.commands.cli", "store", "repair", str(store), "--from", replica]
    return subprocess.run(
        [*line, *options], env=environment(home), capture_output=True, text=True, timeout=120, check=False
    )


def damage(log: Path) -> None:
    """Spoil a body and a header in the first file, and delete the second one."""
    first, second = sorted(log.iterdir())[:2]
    data = bytearray(first.read_bytes())
    body = data.index(b"x" * 500, 200_000) if b"x" * 500 in data else 200_000
    data[body + 10] ^= 4
    data[data.index(b"\xda\xa3\x20\xa7", 400_000) + 1] ^= 4
    first.write_bytes(data)
    second.unlink()


def repair_and_compare(home: Path, store: Path, replica: str) -> None:
    """Damage a store, and fetch what is damaged from a replica, without a difference afterwards."""
    log = store / "commitlog"
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    damage(log)
    damaged = {path.name: path.read_bytes() for path in log.iterdir()}
    dry = repair(home, store, replica, "--dry-run")
    assert dry.returncode == 3, dry.stdout + dry.stderr
    assert dry.stdout.count("write the replica's") == 3, dry.stdout
    assert {path.name: path.read_bytes() for path in log.iterdir()} == damaged
    done = repair(home, store, replica, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before
    assert run_store(home, "verify", store).returncode == 0


@pytest.mark.parametrize("damaged", [0, 1], ids=["of the master", "of the slave"])
def test_damage_is_fetched_from_our_other_replica(tmp_path: Path, damaged: int) -> None:
    with ExitStack() as stack:
        running = Pair(tmp_path, stack, f"mappedFileSizeCommitLog={FILE_BYTES}")
        eventually(lambda: running.status(1).state == "copying", 40)
        with connect(running.address(0)) as master:
            master.ask(topic_request(TOPIC, QUEUES))
        with connect(running.namesrv.namesrv) as namesrv:
            eventually(lambda: has_route(namesrv, TOPIC), 20)
        fill_topic(running.address(0), 4000)
        eventually(lambda: running.is_in_step(0, 1), 20)
        assert running.brokers[damaged].stop() == 0
        store = tmp_path / f"b{damaged}" / "store"
        repair_and_compare(tmp_path, store, running.address(1 - damaged))
        running.restart(damaged)
        eventually(lambda: running.is_in_step(0, 1), 40)
        with Senders(running) as senders:
            senders.wait_for(50)
        assert_nothing_lost(senders, running.address(0))
        eventually(lambda: same_log(running), 20)


def fill_topic(address: str, count: int) -> None:
    with connect(address) as master:
        send_many(master, TOPIC, [b"%d " % number + b"x" * 900 for number in range(count)])


@pytest.mark.both_servers
@pytest.mark.parametrize("version", BROKERS)
def test_damage_is_fetched_from_an_official_master(tmp_path: Path, version: str) -> None:
    with official_pair(tmp_path, BROKERS[version]) as running:
        fill(running.master.broker, 4000)
        slave = running.start_slave()
        running.check_equal()
        assert slave.stop() == 0
        repair_and_compare(tmp_path, running.slave_store, running.master.broker)
        fill(running.master.broker, 100)
        running.start_slave()
        running.check_equal()
