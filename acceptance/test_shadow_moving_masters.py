"""The gateway follows masters that move between addresses, on both of its sides, and so does our namesrv.

The groups: official brokers under an official controller, official DLedger brokers, and ours with a promoted slave.
Stock clients send, in order for each key, and consume through the gateway while the master is killed. What they send
again after a failure may be there twice; nothing else may, and nothing that was acknowledged may be missing.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from acceptance.both_sides import ARRIVAL_TIMEOUT_S, wait_until_same
from acceptance.moving import FREQUENT_REPORTS, KeyedProducer, ShadowProcess
from acceptance.moving_groups import NAME, ControlledGroup, DLedgerGroup, MasterGroup, PromotedGroup
from acceptance.test_cluster import available
from acceptance.test_shadow_capture import captured
from acceptance.test_shadow_kept import committed_offsets, read_messages
from acceptance.test_shadow_story import wait_for_progress
from codec.capture import CaptureRecord
from codec.command import decode_frame
from compat_tests.clients.driver import JavaDriver
from compat_tests.clients.java_api import JavaClient
from compat_tests.clients.typed import connect, create_group, iter_queue, topic_request
from compat_tests.endpoints.ours import OursEndpoint
from compat_tests.server import eventually

pytestmark = pytest.mark.both_servers

TOPIC, GROUP, QUEUES = "Moving", "MovingReaders", 4
SENDING_CODES = (310, 320)
OFTEN = {"pollNameServerInterval": 1000, "heartbeatBrokerInterval": 1000}
PROGRESS = 24
GROUPS = [ControlledGroup, DLedgerGroup, PromotedGroup]
MORE = """
[listen]
refresh_s = 1.0
[capture]
directory = {captures}
block_interval_ms = 50
reserve_bytes = 0
[replication]
discover_ms = 500
offsets_ms = 1000
[mirroring]
state_file = {state}
hold_ms = 20000
"""


@contextmanager
def gateway_between(directory: Path, primary: str, target: str, kind: str) -> Iterator[ShadowProcess]:
    captures = directory / "captures"
    captures.mkdir()
    more = MORE.format(captures=json.dumps(str(captures)), state=json.dumps(str(directory / "mirror.state")))
    with ShadowProcess(directory / "gateway", primary, target, kind=kind, more=more) as gateway:
        yield gateway


@contextmanager
def stock_clients(gateway: ShadowProcess) -> Iterator[JavaClient]:
    with closing(JavaDriver("server-5.4", gateway.namesrv)) as driver:
        yield JavaClient(driver, "5.4.0")


def bodies_at(address: str) -> list[list[str]]:
    """Return the bodies in each queue of the topic."""
    with connect(address) as broker:
        return [
            [bytes(message.body).decode() for message in iter_queue(broker, TOPIC, queue)]
            for queue in range(QUEUES)
        ]


def assert_all_there(load: KeyedProducer, queues: list[list[str]]) -> None:
    """Assert that each acknowledged message is there, twice only if it was sent again, in order within its key."""
    counts = Counter(body for bodies in queues for body in bodies)
    sent = {f"{key} {number}" for key in load.keys for number in range(load.sent[key])}
    assert sent == set(counts)
    assert {body for body, count in counts.items() if count > 1} <= load.resent_bodies
    for bodies in queues:
        for key in load.keys:
            numbers = [int(body.split()[1]) for body in bodies if body.split()[0] == str(key)]
            assert numbers == sorted(numbers)


def acknowledged_bodies(captures: Path) -> set[str]:
    """Return the bodies of the sends whose success is in the capture files."""
    bodies = set()
    for record in captured(captures):
        if isinstance(record, CaptureRecord) and record.code in SENDING_CODES and record.answer is not None:
            assert record.broker == NAME
            request, answer = (
                decode_frame(frame, 4, len(frame)) for frame in (record.request, record.answer)
            )
            if answer.code == 0 and TOPIC in request.ext.values():
                bodies.add(bytes(request.body).decode())
    return bodies


def follow(group: MasterGroup, load: KeyedProducer) -> None:
    """Kill the master under load, and let it come back as a slave."""
    wait_for_progress(load, PROGRESS)
    killed = group.kill_master()
    wait_for_progress(load, PROGRESS)
    group.restart(killed)
    wait_for_progress(load, PROGRESS)


@pytest.mark.parametrize("make_group", GROUPS)
def test_a_primary_whose_master_moves_is_followed(
    tmp_path: Path, make_group: Callable[[Path, ExitStack], MasterGroup]
) -> None:
    with ExitStack() as stack, available():
        group = make_group(tmp_path / "group", stack)
        group.create_topic(TOPIC)
        target = stack.enter_context(OursEndpoint({"mirrorTarget": "true"}, tmp_path / "target"))
        gateway = stack.enter_context(gateway_between(tmp_path, group.namesrv, target.namesrv, "ours"))
        java = stack.enter_context(stock_clients(gateway))
        stack.enter_context(java.producer("moving", **OFTEN))
        reader = stack.enter_context(java.push(GROUP, TOPIC, settings={**OFTEN, **FREQUENT_REPORTS}))
        with KeyedProducer(java, "moving", TOPIC) as load:
            follow(group, load)
        master = group.master
        queues = bodies_at(master)
        assert_all_there(load, queues)
        here, there = wait_until_same(
            lambda where: read_messages(where, TOPIC), master, target.broker, lambda found: bool(found)
        )
        assert here == there
        wanted = {body for bodies in queues for body in bodies}
        eventually(
            lambda: {each["body"] for each in reader.received(0)} == wanted,
            ARRIVAL_TIMEOUT_S,
        )
        ends = [len(bodies) for bodies in queues]
        eventually(lambda: committed_offsets(master, GROUP, TOPIC) == ends, ARRIVAL_TIMEOUT_S)
        eventually(lambda: committed_offsets(target.broker, GROUP, TOPIC) == ends, ARRIVAL_TIMEOUT_S)
        eventually(lambda: not gateway.get_json("/mirror")["diverged"], ARRIVAL_TIMEOUT_S)
        eventually(lambda: acknowledged_bodies(tmp_path / "captures") == wanted, ARRIVAL_TIMEOUT_S)


@pytest.mark.parametrize("make_group", GROUPS)
def test_a_target_whose_master_moves_is_followed(
    tmp_path: Path, make_group: Callable[..., MasterGroup]
) -> None:
    with ExitStack() as stack, available():
        group = make_group(tmp_path / "group", stack)
        primary = stack.enter_context(OursEndpoint(directory=tmp_path / "primary"))
        with connect(primary.broker) as broker:
            broker.ask(topic_request(TOPIC, QUEUES))
            create_group(broker, GROUP)
        gateway = stack.enter_context(gateway_between(tmp_path, primary.namesrv, group.namesrv, "any"))
        java = stack.enter_context(stock_clients(gateway))
        stack.enter_context(java.producer("moving", **OFTEN))
        reader = stack.enter_context(java.push(GROUP, TOPIC, settings={**OFTEN, **FREQUENT_REPORTS}))
        with KeyedProducer(java, "moving", TOPIC) as load:
            wait_for_progress(load, PROGRESS)
            group.wait_until_known(TOPIC)
            follow(group, load)
        assert load.resend_count == 0, "clients of the primary notice nothing"
        gateway.wait_until_mirrored()
        queues = bodies_at(primary.broker)
        assert_all_there(load, queues)
        assert bodies_at(group.master) == queues
        assert len(reader.received(load.total, ARRIVAL_TIMEOUT_S)) >= load.total
        ends = [len(bodies) for bodies in queues]
        eventually(lambda: committed_offsets(group.master, GROUP, TOPIC) == ends, ARRIVAL_TIMEOUT_S)
        with suppress(AssertionError):  # the last assertion says more
            eventually(lambda: not gateway.get_json("/mirror")["diverged"])
        (stream,) = gateway.get_json("/mirror")["streams"]
        assert (stream["refused"], stream["dropped"]) == (0, 0), stream


def test_a_topic_that_was_moved_follows_its_new_master(tmp_path: Path) -> None:
    """The target's former master lives on as a slave, so that no connection to it ends."""
    with ExitStack() as stack, available():
        group = PromotedGroup(tmp_path / "group", stack, "mirrorTarget=true")
        primary = stack.enter_context(OursEndpoint(directory=tmp_path / "primary"))
        with connect(primary.broker) as broker:
            broker.ask(topic_request(TOPIC, QUEUES))
            create_group(broker, GROUP)
        gateway = stack.enter_context(gateway_between(tmp_path, primary.namesrv, group.namesrv, "ours"))
        java = stack.enter_context(stock_clients(gateway))
        stack.enter_context(java.producer("moving", **OFTEN))
        reader = stack.enter_context(java.push(GROUP, TOPIC, settings={**OFTEN, **FREQUENT_REPORTS}))
        with KeyedProducer(java, "moving", TOPIC) as load:
            wait_for_progress(load, PROGRESS)
            gateway.run_step("advance", TOPIC, "--to", "CONSUMERS_SWITCHED", state="CONSUMERS_SWITCHED")
            wait_for_progress(load, PROGRESS)
            group.hand_over()
            wait_for_progress(load, PROGRESS)
            follow(group, load)
        queues = bodies_at(group.master)
        assert_all_there(load, queues)
        wanted = {body for bodies in queues for body in bodies}
        eventually(lambda: {each["body"] for each in reader.received(0)} == wanted, ARRIVAL_TIMEOUT_S)
        ends = [len(bodies) for bodies in queues]
        eventually(lambda: committed_offsets(group.master, GROUP, TOPIC) == ends, ARRIVAL_TIMEOUT_S)
