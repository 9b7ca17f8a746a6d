"""Many clients through the shadow gateway: each has a connection of its own on either side."""

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from compat_tests.cases.processes import Gateway
from compat_tests.clients.typed import beat, messages, pull, send, topic_request
from compat_tests.server import address, eventually
from remoting.blocking import BlockingClient

pytestmark = pytest.mark.ours_only

COUNT = 2000
KIB = 1024


@contextmanager
def many_files(needed: int) -> Iterator[None]:
    """Lets this process open as many files as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < needed:
        pytest.skip(f"only {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_two_thousand_clients(tmp_path: Path) -> None:
    """All are known to the broker as clients, and one works; memory is stated, and given back."""
    with (
        many_files(COUNT * 2 + 500),
        Gateway(tmp_path / "primary", "--memory") as primary,
        Gateway(tmp_path, "--set", f'primary.namesrv=["{primary.namesrv}"]', command="shadow") as gateway,
        ExitStack() as stack,
    ):
        worker = stack.enter_context(gateway.connect())
        worker.ask(topic_request("crowded", 1))
        work(worker, 0)
        before = gateway.memory_bytes()
        for number in range(COUNT):
            client = stack.enter_context(BlockingClient(*address(gateway.broker), timeout_s=30))
            beat(client, f"client@{number}", producer="crowd")
        each = (gateway.memory_bytes() - before) / COUNT
        print(
            f"\n{each / KIB:.1f} KiB for each of {COUNT} clients, {gateway.memory_bytes() / KIB**2:.0f} MiB in all"
        )
        assert each < 64 * KIB
        work(worker, 100)
        open_before = open_files(gateway)
        assert open_before >= 2 * COUNT
        stack.close()
        eventually(lambda: open_files(gateway) < open_before - 2 * COUNT + 50, 60)
        assert "Traceback" not in gateway.output()


def work(client: BlockingClient, first: int) -> None:
    for number in range(first, first + 100):
        assert send(client, "crowded", str(number).encode()).queue_offset == number
    assert [each.body for each in messages(pull(client, "crowded", first, max_msg_nums=1))] == [
        str(first).encode()
    ]


def open_files(gateway: Gateway) -> int:
    return sum(1 for _ in Path(f"/proc/{gateway.pid}/fd").iterdir())
