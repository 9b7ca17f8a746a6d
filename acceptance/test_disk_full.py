"""A full disk: sends are refused, reads and commits continue, and no acknowledged message is lost."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from acceptance.workload import BATCH, GROUP, commit_request, committed_offset, read_queue
from compat_tests.clients.typed import batch_request, bodies, create_group, pull, send_request, topic_request
from compat_tests.server import eventually
from remoting.blocking import BlockingClient
from remoting.errors import RequestError
from remoting.requests.offsets import GetMaxOffset
from tools.processes import Gateway, ProcessEndedEarly

SERVICE_NOT_AVAILABLE = 14
DISK_MIB = 96
# Look at the disk every 100 ms.
SETTINGS = ["--set", "cleanResourceInterval=100", "--set", "flushConsumerOffsetInterval=100"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own: an ext4 file system in a file."""
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(DISK_MIB << 20)
    place = tmp_path / "disk"
    place.mkdir()
    run("mkfs.ext4", "-q", "-m", "0", str(image))
    run("mount", "-o", "loop", str(image), str(place))
    yield place
    subprocess.run(["umount", "-l", str(place)], timeout=30, check=True)


@pytest.fixture
def memory_disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk in memory (tmpfs), where even reading a page that was never written takes room."""
    place = tmp_path / "disk"
    place.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(place))
    yield place
    subprocess.run(["umount", "-l", str(place)], timeout=30, check=True)


def run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except OSError as error:
        pytest.skip(f"cannot make a small disk: {error}")
    if done.returncode:
        pytest.skip(f"cannot make a small disk: {done.stderr.strip()}")


def fill(disk: Path) -> None:
    """Use up all the space that is left, including delayed allocations."""
    with (disk / "ballast").open("ab", buffering=0) as ballast:
        before = -1
        while ballast.tell() > before:
            before = ballast.tell()
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        ballast.write(bytes(size))
            run("sync", "-f", str(disk))


def free(disk: Path) -> None:
    os.unlink(disk / "ballast")


def serve(disk: Path, tmp_path: Path, *arguments: str) -> Gateway:
    return Gateway(tmp_path, "--store", str(disk / "store"), *SETTINGS, *arguments)


class Sender:
    """Sends numbered messages of 1 KiB to queue 0 and records which were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}

    def send(self, client: BlockingClient) -> None:
        body = b"%06d" % len(self.acknowledged) + bytes(1018)
        reply = client.ask(send_request("t", body))
        self.acknowledged[reply.queue_offset] = body

    def send_until_refused(self, client: BlockingClient) -> RequestError:
        for _ in range(DISK_MIB * 1024):
            try:
                self.send(client)
            except RequestError as error:
                return error
        raise AssertionError("never refused")

    def works_again(self, client: BlockingClient) -> bool:
        try:
            self.send(client)
        except RequestError as error:
            assert error.code == SERVICE_NOT_AVAILABLE, error  # noqa: PT017 - the other outcome is none
            return False
        return True

    def check(self, client: BlockingClient) -> None:
        found = {message.queue_offset: message.body for message in read_queue(client, "t")}
        assert found == self.acknowledged


def refused(client: BlockingClient, request: object) -> RequestError:
    with pytest.raises(RequestError) as error:
        client.ask(request)
    return error.value


def test_full_and_freed(disk: Path, tmp_path: Path) -> None:
    fill_and_free(disk, tmp_path)


def test_memory_disk_full_and_freed(memory_disk: Path, tmp_path: Path) -> None:
    fill_and_free(memory_disk, tmp_path)


def fill_and_free(disk: Path, tmp_path: Path) -> None:
    sender = Sender()
    with serve(disk, tmp_path) as gateway, gateway.connect() as client:
        create_group(client, GROUP)
        for _ in range(100):
            sender.send(client)
        for number in range(2):
            fill(disk)
            refusal = sender.send_until_refused(client)
            assert refusal.code == SERVICE_NOT_AVAILABLE
            assert "disk" in (refusal.remark or "")
            # All kinds of sends are refused.
            batch = batch_request("t", [(b"x", {})] * BATCH)
            late = send_request("t", b"later", properties={"DELAY": "1"})
            special = send_request("t", b"x", properties={"TAGS": "a"})
            for request in (batch, late, special):
                assert refused(client, request).code == SERVICE_NOT_AVAILABLE
            # Requests that need no room still work.
            sender.check(client)
            client.ask(commit_request("t", 40 + number))
            assert committed_offset(client, "t") == 40 + number
            end = client.ask(GetMaxOffset(topic="t", queue_id=0)).offset
            assert end == len(sender.acknowledged)
            eventually(lambda: gateway.lines("background task lacks") or gateway.lines("not written"))
            free(disk)
            eventually(lambda: sender.works_again(client), 10)
        sender.check(client)
        assert gateway.stop() == 0, gateway.output()
    with serve(disk, tmp_path) as again, again.connect() as client:
        assert not again.lines("recovering")
        sender.check(client)
        assert committed_offset(client, "t") == 41


def test_quiet_about_it(disk: Path, tmp_path: Path) -> None:
    """A full disk is logged, but not for every refused send."""
    with serve(disk, tmp_path) as gateway, gateway.connect() as client:
        create_group(client, GROUP)
        sender = Sender()
        sender.send(client)
        fill(disk)
        sender.send_until_refused(client)
        client.ask(commit_request("t", 1))
        for _ in range(300):
            assert not sender.works_again(client)
        eventually(lambda: gateway.lines("disk"))
        lines = gateway.output().splitlines()
        print("\n" + "\n".join(lines[:40]))
        assert len(lines) < 60
        assert gateway.stop() in (0, 1)  # 1: the offset could not be saved, which is logged
        assert "Traceback" not in gateway.output()


def test_new_topics_on_a_full_disk(disk: Path, tmp_path: Path) -> None:
    """New topics may be refused or kept in memory; the broker survives, and they work once there is room."""
    with serve(disk, tmp_path) as gateway, gateway.connect() as client:
        sender = Sender()
        sender.send(client)
        fill(disk)
        sender.send_until_refused(client)
        assert refused(client, send_request("new", b"x")).code == SERVICE_NOT_AVAILABLE
        with_topic = topic_request("made", 2)
        try:
            client.ask(with_topic)
        except RequestError as error:
            assert "disk" in (error.remark or "")  # noqa: PT017 - either is right
        free(disk)
        eventually(lambda: sender.works_again(client), 10)
        client.ask(with_topic)
        assert client.ask(send_request("made", b"made")).queue_offset == 0
        assert client.ask(send_request("new", b"new")).queue_offset == 0
        assert gateway.stop() == 0, gateway.output()
    with serve(disk, tmp_path) as again, again.connect() as client:
        assert bodies(pull(client, "made")) == [b"made"]
        assert bodies(pull(client, "new")) == [b"new"]


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_restart_on_a_full_disk(disk: Path, tmp_path: Path, end: str) -> None:
    restart_on_a_full_disk(disk, tmp_path, end)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_restart_on_a_full_memory_disk(memory_disk: Path, tmp_path: Path, end: str) -> None:
    restart_on_a_full_disk(memory_disk, tmp_path, end)


def is_saved(disk: Path, offset: str) -> bool:
    path = disk / "store" / "config" / "consumerOffset.json"
    return path.exists() and offset in path.read_text()


def restart_on_a_full_disk(disk: Path, tmp_path: Path, end: str) -> None:
    sender = Sender()
    with serve(disk, tmp_path) as gateway, gateway.connect() as client:
        create_group(client, GROUP)
        for _ in range(50):
            sender.send(client)
        client.ask(send_request("t2", b"late", properties={"TIMER_DELAY_SEC": "3600"}))
        client.ask(commit_request("t", 7))
        eventually(lambda: is_saved(disk, ":7"))  # with unsaved offsets, a store is not closed cleanly
        fill(disk)
        sender.send_until_refused(client)
        if end == "kill":
            gateway.kill()
        else:
            assert gateway.stop() in (0, 1)
    fill(disk)
    with serve(disk, tmp_path) as again, again.connect() as client:
        assert bool(again.lines("recovering")) == (end == "kill")
        sender.check(client)
        assert committed_offset(client, "t") == 7
        fill(disk)
        assert sender.send_until_refused(client).code == SERVICE_NOT_AVAILABLE
        sender.check(client)
        free(disk)
        eventually(lambda: sender.works_again(client), 10)
        sender.check(client)
        assert again.stop() == 0


def test_delayed_messages_wait_for_room(disk: Path, tmp_path: Path) -> None:
    """A delayed message that cannot be delivered is delivered once there is room."""
    with serve(disk, tmp_path) as gateway, gateway.connect() as client:
        sender = Sender()
        sender.send(client)
        client.ask(topic_request("late", 1))
        client.ask(send_request("late", b"late", properties={"DELAY": "1"}))
        fill(disk)
        sender.send_until_refused(client)
        eventually(lambda: gateway.lines("delayed message refused"), 20)
        free(disk)
        eventually(lambda: bodies(pull(client, "late")) == [b"late"], 20)
        sender.check(client)


@pytest.mark.parametrize("save", [100, 60_000], ids=["tables saved", "tables never saved"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_batches_up_to_the_end(disk: Path, tmp_path: Path, flush: str, save: int) -> None:
    """A batch is stored whole or not at all, wherever the disk ends."""
    settings = [f"flushDiskType={flush}", f"flushConsumerOffsetInterval={save}"]
    with (
        serve(disk, tmp_path, *(word for each in settings for word in ("--set", each))) as gateway,
        gateway.connect() as client,
    ):
        batch = batch_request("b", [(bytes([n]) * 1500, {}) for n in range(BATCH)])
        assert client.ask(batch).queue_offset == 0
        count = 1
        fill(disk)
        while True:
            try:
                assert client.ask(batch).queue_offset == count * BATCH
            except RequestError as error:
                assert error.code == SERVICE_NOT_AVAILABLE  # noqa: PT017 - it must come once
                break
            count += 1
        found = [message.body[0] for message in read_queue(client, "b")]
        assert found == list(range(BATCH)) * count
        assert gateway.stop() == 0, gateway.output()


def test_first_start_on_a_full_disk(disk: Path, tmp_path: Path) -> None:
    fill(disk)
    with pytest.raises(ProcessEndedEarly) as ended:
        serve(disk, tmp_path)
    assert ended.value.code == 1
    assert "no room" in ended.value.output.lower() or "no space" in ended.value.output.lower()
    assert "Traceback" not in ended.value.output
    free(disk)
    with serve(disk, tmp_path) as gateway, gateway.connect() as client:
        assert client.ask(send_request("t", b"x")).queue_offset == 0
