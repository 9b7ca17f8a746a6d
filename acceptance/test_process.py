"""Our server as a process: its start, its memory, its errors if it cannot start, and the data that survives its end."""

import random
import signal
import time
from pathlib import Path

import pytest

from acceptance.workload import (
    GROUP,
    Workload,
    assert_nothing_lost,
    committed_offset,
    missing_delayed,
    read_queue,
)
from codec.command import encode_command
from compat_tests.clients.typed import create_group, pull_request, send, send_many
from compat_tests.endpoints.ports import find_server_ports
from compat_tests.server import eventually
from remoting.errors import RemotingClosed
from remoting.requests.offsets import UpdateConsumerOffset
from toolkit.exit_codes import ExitCode
from tools.bench.usage import cpu_s
from tools.processes import Gateway, ProcessEndedEarly

MIB = 1024 * 1024


def serve(directory: Path, *arguments: str, **options) -> Gateway:
    return Gateway(directory, "--store", str(directory / "store"), *arguments, **options)


def test_start_and_size(tmp_path: Path, record_property) -> None:
    """The server starts with little work and memory; the bound of its time is wide because the machine may be busy."""
    started = time.monotonic()
    with serve(tmp_path) as gateway, gateway.connect() as client:
        assert send(client, "first").queue_offset == 0
        seconds = time.monotonic() - started
        processor_s = cpu_s([gateway.pid])
        resident = gateway.resident_bytes()
    record_property("start_s", round(seconds, 2))
    record_property("resident_mib", round(resident / MIB, 1))
    print(f"\nstart to first accepted message {seconds:.2f} s, resident {resident / MIB:.1f} MiB")
    assert processor_s < 2
    assert seconds < 25
    assert resident <= 60 * MIB


# Errors that prevent a start


@pytest.mark.parametrize("taken", ["--port", "--broker-port"])
def test_taken_port(tmp_path: Path, taken: str) -> None:
    with serve(tmp_path / "first") as first:
        address = first.namesrv if taken == "--port" else first.broker
        port = address.rpartition(":")[2]
        with pytest.raises(ProcessEndedEarly) as refused:
            serve(tmp_path / "second", taken, port)
        assert refused.value.code == 1
        assert port in refused.value.output
        assert "in use" in refused.value.output
        assert "Traceback" not in refused.value.output
        with first.connect() as client:
            send(client, "still_there")


def test_locked_store(tmp_path: Path) -> None:
    with serve(tmp_path) as first:
        with pytest.raises(ProcessEndedEarly) as refused:
            serve(tmp_path)
        assert refused.value.code == 1
        assert "another process has" in refused.value.output
        assert str(tmp_path / "store") in refused.value.output
        assert "Traceback" not in refused.value.output
        with first.connect() as client:
            send(client, "still_there")
        assert first.stop() == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("listenPort=no", ["listenPort", "no"]),
        ("flushDiskType=SOMETIMES", ["flushDiskType", "SOMETIMES"]),
        ("brokerId=1", ["brokerId", "0"]),
    ],
)
def test_wrong_conf(tmp_path: Path, line: str, words: list[str]) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=b\n{line}\n")
    with pytest.raises(ProcessEndedEarly) as refused:
        serve(tmp_path, "-c", str(conf))
    assert refused.value.code == ExitCode.USAGE
    assert all(word in refused.value.output for word in [*words, "broker.conf"])
    assert "Traceback" not in refused.value.output


def test_missing_conf(tmp_path: Path) -> None:
    with pytest.raises(ProcessEndedEarly) as refused:
        serve(tmp_path, "-c", str(tmp_path / "none.conf"))
    assert refused.value.code == ExitCode.USAGE
    assert "none.conf" in refused.value.output


def test_damaged_table(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{half a fi")
    with pytest.raises(ProcessEndedEarly) as refused:
        serve(tmp_path)
    assert refused.value.code == 1
    assert "topics.json" in refused.value.output
    assert "Traceback" not in refused.value.output


# Orderly stops


def test_sigterm_under_load(tmp_path: Path) -> None:
    with serve(tmp_path) as gateway:
        with gateway.connect() as waiting, gateway.connect(), Workload(gateway.broker, "term") as load:
            waiting.send_bytes(encode_command(pull_request(load.late, suspend_ms=30_000).to_command(5)))
            load.wait_for_more(500)
            started = time.monotonic()
            assert gateway.stop() == 0
            seconds = time.monotonic() - started
        print(f"\nended {seconds:.2f} s after SIGTERM")
        assert seconds < 20, "a pull that waits for 30 s is answered"
        assert "Traceback" not in gateway.output()
    with serve(tmp_path) as again, again.connect() as client:
        assert not again.lines("recovering"), "an orderly end needs no recovery"
        assert_nothing_lost(client, [load])
        assert committed_offset(client, load.single) == load.committed[-1]
        eventually(lambda: not missing_delayed(client, load), 20)


def test_sigterm_is_not_held_up_by_a_peer_that_does_not_read(tmp_path: Path) -> None:
    """A stop waits for requests in progress, but not for a client to read its answers."""
    with serve(tmp_path) as gateway, gateway.connect() as client, gateway.connect() as silent:
        send_many(client, "big", [b"x" * 250_000] * 40)
        ask_without_reading(silent, "big", 40)
        eventually(lambda: client.ask(pull_request("big", 39)).code == 0)
        started = time.monotonic()
        assert gateway.stop() == 0
        assert time.monotonic() - started < 20


def ask_without_reading(client, topic: str, count: int) -> None:
    """Request more answers than the kernel buffers for a socket."""
    for number in range(count):
        request = pull_request(topic, number, max_msg_nums=1)
        client.send_bytes(encode_command(request.to_command(number)))


def test_second_sigterm_ends_at_once_and_in_order(tmp_path: Path) -> None:
    long = ["--set", "shutdownWaitTimeSeconds=600"]
    with serve(tmp_path, *long) as gateway, gateway.connect() as client, gateway.connect() as silent:
        send_many(client, "big", [b"x" * 250_000] * 40)
        ask_without_reading(silent, "big", 40)
        eventually(lambda: client.ask(pull_request("big", 39)).code == 0)
        gateway.signal(signal.SIGTERM)
        eventually(lambda: gateway.lines("stopping"))
        gateway.signal(signal.SIGTERM)
        assert gateway.wait(10) == 0
    with serve(tmp_path) as again, again.connect() as client:
        assert not again.lines("recovering")
        assert len(list(read_queue(client, "big"))) == 40


def test_sigint_is_an_orderly_end_too(tmp_path: Path) -> None:
    with serve(tmp_path) as gateway:
        gateway.signal(signal.SIGINT)
        assert gateway.wait() == 0
    assert not (tmp_path / "store" / "abort").exists()


# Kills


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_sigkill_under_load(tmp_path: Path, flush: str) -> None:
    """Rounds of load and SIGKILL on one store, with files so small that they roll over under load."""
    chance = random.Random(flush)
    settings = ["--set", f"flushDiskType={flush}", "--set", "mappedFileSizeCommitLog=1048576"]
    settings += ["--set", "mappedFileSizeConsumeQueue=8000", "--set", "flushConsumerOffsetInterval=100"]
    loads: list[Workload] = []
    for _ in range(5):
        with serve(tmp_path, *settings) as gateway:
            start = check_after_kill(gateway, loads) if loads else 0
            with Workload(gateway.broker, "kill", start=start) as load:
                loads.append(load)
                load.wait_for_more(chance.randrange(50, 1500))
                gateway.kill()
    with serve(tmp_path, *settings) as gateway:
        check_after_kill(gateway, loads)
        with gateway.connect() as client:
            for load in loads:
                eventually(lambda: not missing_delayed(client, load), 30)  # noqa: B023 - called in this iteration
        assert gateway.stop() == 0
    assert "Traceback" not in gateway.log.read_text()


def check_after_kill(gateway: Gateway, loads: list[Workload]) -> int:
    """Assert that no acknowledged message is lost, and return the consumer's offset, which must be readable."""
    with gateway.connect() as client:
        assert_nothing_lost(client, loads)
        offset = committed_offset(client, loads[-1].single)
        assert offset in {one for load in loads for one in load.committed}
        # The one after the last acknowledged commit may have been carried out as well.
        assert offset >= max(one for load in loads for one in load.committed[:-1] or [0])
        list(read_queue(client, loads[-1].single, 0, offset))
        return offset


def test_committed_offset_survives_sigkill(tmp_path: Path) -> None:
    file = tmp_path / "store" / "config" / "consumerOffset.json"
    settings = ["--set", "flushConsumerOffsetInterval=100"]
    with serve(tmp_path, *settings) as gateway, Workload(gateway.broker, "commit", delayed=False) as load:
        load.wait_for_more(300)
        saved = eventually(lambda: file.exists() and GROUP in file.read_text() and load.committed[-1])
        eventually(lambda: _saved_offset(file, load.single) >= saved)
        gateway.kill()
    with serve(tmp_path) as gateway, gateway.connect() as client:
        assert committed_offset(client, load.single) >= saved


def test_offsets_survive_sigkill_without_a_save(tmp_path: Path) -> None:
    """Those that consumers committed, and one that an administrator moved back, since the last save."""
    settings = ["--set", "flushConsumerOffsetInterval=3600000"]
    with serve(tmp_path, *settings) as gateway, gateway.connect() as client:
        for queue_id in range(4):
            send_many(client, "orders", [b"x"] * 4, queue_id=queue_id)
        create_group(client, GROUP)
        for queue_id in range(4):
            client.ask(commit_request("orders", queue_id, 4))
        client.ask(commit_request("orders", 2, 1))
        gateway.kill()
    assert not (tmp_path / "store" / "config" / "consumerOffset.json").exists()
    with serve(tmp_path, *settings) as gateway, gateway.connect() as client:
        assert [committed_offset(client, "orders", queue_id) for queue_id in range(4)] == [4, 4, 1, 4]
        client.ask(commit_request("orders", 0, 2))
        gateway.kill()
    with serve(tmp_path, *settings) as gateway, gateway.connect() as client:
        assert [committed_offset(client, "orders", queue_id) for queue_id in range(4)] == [2, 4, 1, 4]
        assert gateway.stop() == 0
    assert not (tmp_path / "store" / "consumeroffsets.journal").exists()
    with serve(tmp_path) as gateway, gateway.connect() as client:
        assert [committed_offset(client, "orders", queue_id) for queue_id in range(4)] == [2, 4, 1, 4]


def commit_request(topic: str, queue_id: int, offset: int) -> UpdateConsumerOffset:
    return UpdateConsumerOffset(consumer_group=GROUP, topic=topic, queue_id=queue_id, commit_offset=offset)


def _saved_offset(file: Path, topic: str) -> int:
    from codec.fastjson import loads

    table = loads(file.read_bytes())["offsetTable"]
    return {int(queue): offset for queue, offset in table[f"{topic}@{GROUP}"].items()}[0]


def test_sigkill_with_a_waiting_pull_closes_its_connection(tmp_path: Path) -> None:
    with serve(tmp_path) as gateway, gateway.connect() as waiting, gateway.connect() as client:
        send(client, "quiet", queue_id=1)
        waiting.send_bytes(encode_command(pull_request("quiet", suspend_ms=30_000).to_command(5)))
        gateway.kill()
        with pytest.raises(RemotingClosed):
            waiting.receive_command(timeout_s=5)


def test_memory_leaves_nothing_behind(tmp_path: Path) -> None:
    with Gateway(tmp_path, "--memory") as gateway:
        with Workload(gateway.broker, "memory") as load:
            load.wait_for_more(500)
        with gateway.connect() as client:
            assert_nothing_lost(client, [load])
            eventually(lambda: not missing_delayed(client, load), 20)
        assert gateway.stop() == 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != gateway.log]


# Ports


def test_ports_are_those_asked_for(tmp_path: Path) -> None:
    namesrv, broker = find_server_ports()
    with serve(tmp_path, "--port", str(namesrv), "--broker-port", str(broker)) as gateway:
        assert gateway.namesrv == f"127.0.0.1:{namesrv}"
        assert gateway.brokers == {"broker-a": f"127.0.0.1:{broker}"}
