"""`rmq-gateway store`: backups made during sends open in both servers, and the tools read official stores."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from acceptance.workload import (
    Workload,
    assert_nothing_lost,
    commit_request,
    committed_offset,
    read_queue,
)
from compat_tests.clients.programs import run_mqadmin
from compat_tests.clients.typed import (
    batch_request,
    connect,
    create_group,
    pull,
    send,
    send_many,
    topic_request,
)
from compat_tests.endpoints.official import OfficialEndpoint
from compat_tests.jars import Unavailable
from compat_tests.plugin import skip_or_fail
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.requests.query import QueryMessage
from tools.processes import Gateway, ProcessEndedEarly, environment

pytestmark = pytest.mark.both_servers

SMALL_FILES = {"mappedFileSizeCommitLog": str(1 << 20), "mappedFileSizeConsumeQueue": "6000"}
PATIENT = {"waitTimeMillsInSendQueue": "20000"}
COMMAND_TIMEOUT_S = 120
DAMAGED = 3
"""Exit code of commands that found damage; see docs/reference/exit-codes.md."""


class Acknowledged:
    """The messages that a workload had acknowledged at one moment."""

    def __init__(self, load: Workload) -> None:
        self.acknowledged = {queue: dict(bodies) for queue, bodies in list(load.acknowledged.items())}


def run_store(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    home.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "gateway.commands.cli", "store", *map(str, arguments)]
    return subprocess.run(
        command, env=environment(home), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )


def json_lines(home: Path, *arguments: object, code: int = 0) -> list[dict[str, Any]]:
    done = run_store(home, *arguments)
    assert done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def official_on(directory: Path, **settings: str) -> OfficialEndpoint:
    try:
        return OfficialEndpoint({**PATIENT, **SMALL_FILES, **settings}, directory)
    except Unavailable as missing:
        skip_or_fail(str(missing))


def ours_on(directory: Path) -> Gateway:
    sizes = [word for name, value in SMALL_FILES.items() for word in ("--set", f"{name}={value}")]
    return Gateway(directory, "--store", str(directory / "store"), *sizes)


@contextmanager
def running(kind: str, directory: Path) -> Iterator[str]:
    """Run one of the two servers on ``directory/store``; the value is the broker's address."""
    if kind == "ours":
        with ours_on(directory) as gateway:
            yield gateway.broker
            assert gateway.stop() == 0
    else:
        with official_on(directory) as official:
            yield official.broker
            official.stop()


def find_by_key(client: BlockingClient, topic: str, key: str) -> int:
    request = QueryMessage(topic=topic, key=key, max_num=9, begin_timestamp=0, end_timestamp=1 << 60)
    return len(client.ask(request).body)


@pytest.mark.parametrize("source", ["ours", "official"])
def test_a_backup_made_during_sends_opens_in_both_servers(tmp_path: Path, source: str) -> None:
    home = tmp_path / "home"
    with running(source, tmp_path / "source") as broker:
        load = Workload(broker, "kept")
        with load:
            load.wait_for_more(2000)
            before = Acknowledged(load)
            backup = tmp_path / "backup"
            (summary,) = json_lines(home, "backup", tmp_path / "source" / "store", backup, "--json")
            load.wait_for_more(500)
        assert load.count >= 2500
    assert summary["end_offset"] > 0
    assert not backup.with_name("backup.partial").exists()
    assert run_store(home, "verify", backup).returncode == 0
    groups = [line for line in json_lines(home, "inspect", backup, "--json") if line["kind"] == "group"]
    assert [group for group in groups if group["lag"] < 0] == []
    for kind in ("ours", "official"):
        place = tmp_path / f"restored-{kind}"
        place.mkdir()
        shutil.copytree(backup, place / "store")
        with running(kind, place) as broker, connect(broker, timeout_s=30) as client:
            assert_nothing_lost(client, [before])
            for topic, queue_id in before.acknowledged:
                *_, last = (message.queue_offset for message in read_queue(client, topic, queue_id))
                assert send(client, topic, b"next", queue_id=queue_id).queue_offset == last + 1
            assert committed_offset(client, load.single, group="load_group") <= max(load.committed)


def write_all_kinds(client: BlockingClient) -> None:
    """Send single, batched, keyed, tagged, half, delayed and compressed messages, and commit an offset."""
    client.ask(topic_request("kinds", 2))
    create_group(client, "readers")
    send_many(client, "kinds", [b"plain %d" % number for number in range(3000)])
    client.ask(batch_request("kinds", [(b"batched %d" % number, {}) for number in range(50)], queue_id=1))
    for number in range(20):
        properties = {"KEYS": f"key{number}", "TAGS": "tag", "UNIQ_KEY": f"{number:032X}"}
        send(client, "kinds", b"keyed", queue_id=1, properties=properties)
    send(client, "kinds", b"half", properties={"TRAN_MSG": "true", "PGROUP": "p"}, sys_flag=4)
    send(client, "kinds", b"late", properties={"DELAY": "18"})
    client.ask(commit_request("kinds", 2990, group="readers"))


def assert_readable(home: Path, store: Path, state: str) -> None:
    """Assert what inspect, verify and dump say about a store after `write_all_kinds`."""
    lines = json_lines(home, "inspect", store, "--json")
    assert lines[0]["state"] == state
    ends = {
        (each["topic"], each["queue_id"]): each["max_offset"] for each in lines if each["kind"] == "queue"
    }
    assert (ends["kinds", 0], ends["kinds", 1]) == (3000, 70)
    *findings, totals = json_lines(home, "verify", store, "--json")
    assert [found for found in findings if found["severity"] == "damage"] == []
    assert totals["messages"] >= 3072
    bodies = [each["body"] for each in json_lines(home, "dump", store, "--topic", "kinds", "--queue", "0")]
    assert sorted(bodies) == sorted(f"plain {number}" for number in range(3000))
    (found,) = json_lines(home, "dump", store, "--key", "key7")
    assert (found["properties"]["TAGS"], found["queue_id"]) == ("tag", 1)
    assert "half" in [each["body"] for each in json_lines(home, "dump", store)]


def lag_of(home: Path, store: Path) -> list[int]:
    lines = json_lines(home, "inspect", store, "--json")
    return [each["lag"] for each in lines if each["kind"] == "group" and each["group"] == "readers"]


def test_the_tools_read_and_repair_an_official_store(tmp_path: Path) -> None:
    """While the broker runs, after SIGKILL, and after an orderly stop; then with damage."""
    home, store = tmp_path / "home", tmp_path / "store"
    official = official_on(tmp_path)
    with official:
        with connect(official.broker) as client:
            write_all_kinds(client)
        assert_readable(home, store, "open")
        assert "is open: process" in run_store(home, "repair", store, "--yes").stderr
        eventually(lambda: lag_of(home, store) == [10], 30)
        official.crash()
        assert_readable(home, store, "crashed")
        official.start()
        official.stop()
        assert_readable(home, store, "closed")
        damage = damage_message(home, store, offset=1234)
        findings = json_lines(home, "verify", store, "--json", code=DAMAGED)
        assert (findings[0]["file"], findings[0]["offset"]) == damage
        repaired = run_store(home, "repair", store, "--yes")
        assert repaired.returncode == 0, repaired.stdout + repaired.stderr
        official.start()
        with connect(official.broker) as client:
            assert len(list(islice(read_queue(client, "kinds"), 1234))) == 1234
            # An official pull that comes to the lost message skips others, too, but does not fail.
            skipped = pull(client, "kinds", 1234)
            assert 1234 < skipped.next_begin_offset <= 1234 + 800
            assert len(list(read_queue(client, "kinds", start=1235))) == 3000 - 1235
            assert send(client, "kinds", b"next").queue_offset == 3000
            (last,) = eventually(lambda: list(read_queue(client, "kinds", start=3000)))
            assert last.body == b"next"
            assert find_by_key(client, "kinds", "key7") > 0
            assert committed_offset(client, "kinds", group="readers") == 2990


def damage_message(home: Path, store: Path, offset: int) -> tuple[str, int]:
    """Flip a bit in the body of a message of queue kinds 0; return its file and its first byte there."""
    window = ("--from-offset", offset, "--until-offset", offset + 1)
    (message,) = json_lines(home, "dump", store, "-t", "kinds", "-q", 0, *window)
    base = message["physical_offset"] - message["physical_offset"] % (1 << 20)
    path = store / "commitlog" / f"{base:020d}"
    data = bytearray(path.read_bytes())
    data[message["physical_offset"] - base + 90] ^= 4
    path.write_bytes(data)
    return str(path), message["physical_offset"] - base


def test_queues_in_rocksdb_are_refused_until_they_are_converted(tmp_path: Path) -> None:
    """The steps that the refusal names make the store readable, with all messages, topics and offsets."""
    home, store = tmp_path / "home", tmp_path / "store"
    official = official_on(tmp_path, storeType="defaultRocksDB")
    with official:
        with connect(official.broker) as client:
            write_all_kinds(client)
            eventually(lambda: committed_offset(client, "kinds", group="readers") == 2990)
        run_mqadmin(tmp_path / "admin", "rocksDBConfigToJson", "-b", official.broker)
        official.stop()
    for command in ("inspect", "verify", "dump", "repair"):
        refused = run_store(home, command, store)
        assert (refused.returncode, "mqadmin rocksDBConfigToJson" in refused.stderr) == (1, True), (
            refused.stderr
        )
    with pytest.raises(ProcessEndedEarly, match="keeps data in RocksDB") as ended:
        ours_on(tmp_path)
    folders = re.findall(r"[(,] ?((?:config|consumequeue)[^,)]*)", ended.value.output)
    assert "consumequeue" in folders
    for number, folder in enumerate(folders):
        (store / folder).rename(tmp_path / f"moved-{number}")
    with ours_on(tmp_path) as gateway, gateway.connect() as client:
        assert len(list(read_queue(client, "kinds"))) == 3000
        assert len(list(read_queue(client, "kinds", 1))) == 70
        assert committed_offset(client, "kinds", group="readers") == 2990
        assert gateway.stop() == 0
