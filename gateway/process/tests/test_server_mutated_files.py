"""A broker whose files were mutated at random starts and serves, or names the file that it cannot read.

The files are those of a broker that used every kind of record: tables, queues, timers, pops, half messages, staged
parts. Mutations of single kinds of records are in `test_damaged_records_mutants`; here whole files are hit, several at
once, and every background task of the broker runs on them.
"""

import logging
import random
from collections.abc import Callable, Iterator

import orjson
import pytest
import trio

from codec.batch import encode_batch
from codec.properties import encode_properties
from gateway.namesrv.kv_config import KvConfig
from gateway.tests.cluster import EPOCH_MS, Cluster, Node, bodies, message, pull, simulated
from gateway.tests.popping import Client, pop_request
from remoting.bodies.groups import SubscriptionGroupConfig
from remoting.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.bodies.pop import SetMessageRequestModeRequestBody
from remoting.connection import Connection
from remoting.requests.client import HeartBeat
from remoting.requests.groups import UpdateAndCreateSubscriptionGroup
from remoting.requests.offsets import UpdateConsumerOffset
from remoting.requests.pop import SetMessageRequestMode
from remoting.requests.staging import StageMessages
from remoting.requests.topics import UpdateAndCreateTopic
from storage.errors import CorruptionError
from storage.files import MemoryFiles
from tools.fuzz.json_mutations import mutate_bytes, mutate_json_text, mutate_value, write_json
from tools.fuzz.values import Chance

HOST = "10.0.1.1"
SETTINGS = {
    "staged_publish": True,
    "enable_property_filter": True,
    "timer_roll_window_slots": 100,
    "transaction_timeout_ms": 1000,
    "transaction_check_interval_ms": 2000,
}
SEEDS = range(30)


async def start_broker(cluster: Cluster, files: MemoryFiles) -> Node:
    return await cluster.add_broker(host=HOST, files=files, **SETTINGS)


async def use_everything(cluster: Cluster, node: Node) -> None:
    """Leave records of every kind in the broker's files."""
    client = cluster.dial(node.address)
    await create_tables(client)
    for number in range(20):
        await client.ask(message(body=b"%d" % number, queue_id=number % 2, tags="a", key=f"U{number}"))
    for more in ({"DELAY": "3"}, {"TIMER_DELAY_SEC": "20"}, {"TIMER_DELAY_SEC": "400"}):
        await client.ask(message(body=b"later", properties=more))
    half = {"TRAN_MSG": "true", "PGROUP": "PID"}
    for number in range(3):
        await client.ask(message("transactions", b"half", sys_flag=4, key=f"H{number}", properties=half))
    poppers = Client(cluster, node)
    popped = await poppers.pop()
    await poppers.ack(*popped[:3])
    await poppers.batch_ack(*popped[3:5])
    await client.ask(pop_request(order=True, group="ordered", attempt_id="a"))
    for group in ("GID", "g2"):
        commit = UpdateConsumerOffset(consumer_group=group, topic="orders", queue_id=0, commit_offset=5)
        await client.ask(commit)
    stage = StageMessages(
        writer="w",
        batch=0,
        stage="s",
        number=0,
        topic="orders",
        queue_id=0,
        sys_flag=0,
        born_timestamp=EPOCH_MS,
    )
    stage.body = encode_batch([(0, b"staged", encode_properties({"UNIQ_KEY": "S1"}))])
    await client.ask(stage)
    await trio.sleep(8)


async def create_tables(client: Connection) -> None:
    for topic in ("orders", "transactions"):
        await client.ask(
            UpdateAndCreateTopic(
                topic=topic,
                default_topic="TBW102",
                read_queue_nums=4,
                write_queue_nums=4,
                perm=6,
                topic_filter_type="SINGLE_TAG",
                attributes="+message.type=TRANSACTION" if topic == "transactions" else "",
            )
        )
    for group in ("GID", "g2", "ordered"):
        await client.ask(
            UpdateAndCreateSubscriptionGroup(data=SubscriptionGroupConfig(group_name=group, attributes={}))
        )
    subscription = SubscriptionData(
        topic="orders", sub_string="a > 1", expression_type="SQL92", sub_version=1
    )
    consumer = ConsumerData(
        group_name="sql", consume_type="CONSUME_PASSIVELY", subscription_data_set=[subscription]
    )
    await client.ask(HeartBeat(data=HeartbeatData(client_id="c", consumer_data_set=[consumer])))
    await client.ask(
        SetMessageRequestMode(
            data=SetMessageRequestModeRequestBody(topic="orders", consumer_group="GID", mode="POP")
        )
    )


def copy_files(files: MemoryFiles) -> MemoryFiles:
    copied = MemoryFiles()
    copied._small.update(files._small)
    for path, mapping in files._mapped.items():
        content = bytes(mapping.buffer).rstrip(b"\0")
        copied.open_mapped(path, mapping.size_bytes).buffer[: len(content)] = content
    return copied


def mutate_files(chance: Chance, files: MemoryFiles) -> list[str]:
    """Mutate one to three files in place and return their paths."""
    small = sorted(files._small)
    mapped = sorted(path for path, mapping in files._mapped.items() if any(mapping.buffer))
    hit = []
    for _ in range(1 + chance.below(3)):
        if chance.happens(0.6):
            path = chance.pick(small)
            files._small[path] = mutate_small(chance, files._small[path])
        else:
            path = chance.pick(mapped)
            mutate_mapped(chance, files._mapped[path].buffer)
        hit.append(path)
    return hit


def mutate_small(chance: Chance, content: bytes) -> bytes:
    try:
        value = orjson.loads(content)
    except ValueError:
        return mutate_bytes(chance, content)
    if chance.happens(0.7):
        return write_json(mutate_value(chance, value))
    return mutate_json_text(chance, content)


def mutate_mapped(chance: Chance, buffer: memoryview) -> None:
    """Overwrite up to 512 bytes of the used part of a file."""
    used = len(bytes(buffer).rstrip(b"\0"))
    for _ in range(1 + chance.below(4)):
        at = chance.below(used)
        size = min(chance.pick((1, 4, 8, 20, 512)), used - at)
        buffer[at : at + size] = chance.pick((bytes(size), b"\xff" * size, chance.randbytes(size)))


@pytest.fixture(scope="module", params=["stopped", "crashed"])
def used_files(request: pytest.FixtureRequest) -> MemoryFiles:
    """The files of a broker that used everything, and then stopped in order or did not."""
    files = MemoryFiles()

    @simulated
    async def use(cluster: Cluster) -> None:
        node = await start_broker(cluster, files)
        await use_everything(cluster, node)
        await (node.stop() if request.param == "stopped" else node.crash())

    use()
    return files


def unexpected(records: list[logging.LogRecord]) -> Iterator[str]:
    """Yield what was logged with a trace, except damage that is named with its file and byte."""
    for record in records:
        if record.exc_info and not isinstance(record.exc_info[1], CorruptionError | None):
            yield f"{record.getMessage()}: {record.exc_info[1]!r}"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_broker_serves_on_mutated_files_or_names_one(
    used_files: MemoryFiles, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = copy_files(used_files)
    hit = mutate_files(Chance(f"files {seed}"), files)
    serve_on(files, hit)()
    assert list(unexpected(caplog.records)) == []


def serve_on(files: MemoryFiles, hit: list[str]) -> Callable[[], None]:
    @simulated
    async def serve(cluster: Cluster) -> None:
        node = await start_or_refuse(cluster, files, hit)
        if node is None:
            return
        await check_service(cluster, node)
        await node.stop()
        await check_service(cluster, await start_broker(cluster, files))

    return serve


async def start_or_refuse(cluster: Cluster, files: MemoryFiles, hit: list[str]) -> Node | None:
    """Start a broker; return None when it refuses and names one of the mutated files."""
    try:
        return await start_broker(cluster, files)
    except (CorruptionError, ValueError) as refused:
        if any(path.rsplit("/", 1)[-1] in str(refused) for path in hit):
            return None
        raise


async def check_service(cluster: Cluster, node: Node) -> None:
    """Store and read a message of a new topic, read and pop old ones, and let background tasks work for two minutes."""
    client = cluster.dial(node.address)
    fresh = f"fresh_{random.random()}".replace(".", "")
    await client.ask(message(fresh, b"fresh"))
    assert bodies(await client.ask(pull(fresh, group="new"))) == [b"fresh"]
    for request in (pull(offset=2), pop_request(), pop_request(order=True, group="ordered")):
        command = await client.ask_command(request.to_command(), 10)
        assert command.is_response
    await trio.sleep(120)
    assert bodies(await client.ask(pull(fresh, group="new"))) == [b"fresh"]


def test_a_mutated_kv_configuration_is_read_or_refused() -> None:
    table = b'{"configTable":{"ORDER_TOPIC_CONFIG":{"t":"broker-a:4"},"other":{"key":"value","empty":""}}}'
    refused = 0
    for seed in range(300):
        try:
            config = KvConfig(mutate_small(Chance(f"kv {seed}"), table))
        except ValueError:
            refused += 1
            continue
        config.put("other", "key", "again")
        assert KvConfig(config.encoder()()).get("other", "key") == "again", f"seed {seed}"
    assert 0 < refused < 300
