"""The plugin in a pytest of its own: scopes, event loops, and nothing imported when it is not used."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
import trio
from gateway.testing.tests.clients import Client

seen = []

def test_first(rocketmq, rocketmq_class, rocketmq_module, rocketmq_session):
    seen.append((rocketmq.namesrv_address, rocketmq_module.namesrv_address, rocketmq_session.namesrv_address))
    assert len({*seen[0], rocketmq_class.namesrv_address}) == 4

def test_scopes(rocketmq, rocketmq_module, rocketmq_session):
    assert seen[0][0] != rocketmq.namesrv_address
    assert seen[0][1:] == (rocketmq_module.namesrv_address, rocketmq_session.namesrv_address)

async def use(rocketmq, ticks):
    with Client(rocketmq) as client:
        client.send("orders", properties={"DELAY": "3"})
    await rocketmq.aio.create_topic("other", queues=1)
    await rocketmq.aio.advance(10)
    assert [each.body for each in await rocketmq.aio.wait_for("orders")] == [b"hello"]
    assert await rocketmq.aio.consumer_lag("GID", "orders") == 1
    try:
        await rocketmq.aio.wait_until_consumed("GID", "orders", 0.05)
    except TimeoutError:
        pass
    await rocketmq.aio.stop_broker()
    await rocketmq.aio.start_broker()
    assert len(await rocketmq.aio.messages("orders")) == 1
    await rocketmq.aio.reset()
    assert rocketmq.messages("orders") == []
    assert ticks

def test_asyncio(rocketmq):
    async def main():
        ticks = []
        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0.001)
        ticking = asyncio.create_task(tick())
        await use(rocketmq, ticks)
        ticking.cancel()
    asyncio.run(main())

def test_trio(rocketmq):
    async def main():
        ticks = []
        async def tick():
            while True:
                ticks.append(1)
                await trio.sleep(0.001)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            await use(rocketmq, ticks)
            nursery.cancel_scope.cancel()
    trio.run(main)
"""


@pytest.fixture
def run_pytest(tmp_path):
    def run(program, *options):
        (tmp_path / "test_program.py").write_text(program)
        command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_fixtures_serve_all_scopes_and_event_loops(run_pytest):
    status, output = run_pytest(PROGRAM)
    assert status == 0, output
    assert "4 passed" in output


def test_unused_plugin_imports_no_server(run_pytest):
    status, output = run_pytest(
        "import sys\n\ndef test_nothing():\n"
        "    heavy = {'trio', 'orjson', 'gateway.process.local_brokers', 'gateway.testing.double'}\n"
        "    assert heavy & sys.modules.keys() == set()\n"
        "    assert 'gateway.testing.pytest_plugin' in sys.modules\n"
    )
    assert status == 0, output


def test_plugin_can_be_switched_off(run_pytest):
    status, output = run_pytest("def test_it(rocketmq):\n    pass\n", "-p", "no:rocketmq-gateway")
    assert status == 1
    assert "fixture 'rocketmq' not found" in output
