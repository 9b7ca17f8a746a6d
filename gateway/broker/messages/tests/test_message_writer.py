import pytest

from codec.message import decode_message
from gateway.broker.messages.message_writer import MessageWriter, store_refusal
from gateway.broker.waiting.long_poll import LongPolls
from gateway.tests.broker_fakes import FakeClock
from remoting.errors import RequestError
from storage.append import NewMessage
from storage.config import StoreConfig
from storage.errors import MessageIllegal, StoreFull
from storage.files import MemoryFiles
from storage.store import MessageStore


class Marks(LongPolls):
    """Records the queues that were marked as grown."""

    def __init__(self, store):
        super().__init__(store.clock, store)
        self.grown = []

    def mark_grown(self, topic, queue_id):
        self.grown.append((topic, queue_id))


class NoDelays:
    """A scheduler that lets every message go at once."""

    def schedule(self, message):
        return message


@pytest.fixture
def world():
    clock = FakeClock()
    config = StoreConfig(root="/s", commit_log_file_bytes=1 << 16, max_message_bytes=1000)
    store = MessageStore.open(config, MemoryFiles(), clock)
    polls = Marks(store)
    return store, polls, MessageWriter(store, polls, NoDelays())


def test_all_fields_are_stored_and_the_queue_is_marked(world):
    store, polls, put = world
    message = NewMessage(
        "t", 2, b"body", {"TAGS": "a"}, 5, 1, 77, bytes((10, 0, 0, 1, 0, 0, 0, 9)), bytes((10, 0, 0, 2, 0, 0, 0, 8)),
        3, None, 4,
    )  # fmt: skip
    offset, physical_offset, size, store_ms = put.write(message)
    got = decode_message(store.message_at(physical_offset))
    assert (offset, size, store_ms) == (0, got.size, got.store_timestamp)
    assert (got.body, got.properties, got.flag, got.sys_flag, got.born_timestamp) == (
        b"body",
        {"TAGS": "a"},
        5,
        1,
        77,
    )
    assert (got.born_host, got.store_host) == (("10.0.0.1", 9), ("10.0.0.2", 8))
    assert (got.reconsume_times, got.prepared_transaction_offset) == (3, 4)
    assert polls.grown == [("t", 2)]


def test_the_scheduler_may_send_it_elsewhere_and_put_now_does_not_ask(world):
    store, polls, _ = world

    class Scheduler:
        def schedule(self, message):
            return message.with_changes(topic="later", queue_id=9)

    put = MessageWriter(store, polls, Scheduler())
    put.write(NewMessage("t", 0, b"x", {}))
    put.append(NewMessage("t", 0, b"x", {}))
    assert polls.grown == [("later", 9), ("t", 0)]


def test_a_given_tags_code_replaces_the_one_of_the_tags(world):
    store, _, put = world
    put.write(NewMessage("t", 0, b"x", {"TAGS": "a"}, tags_code=123))
    seen = []

    def accept(code):
        seen.append(code)
        return True

    store.read("t", 0, 0, 1, predicate=accept)
    assert seen == [123]


def test_refusals_of_the_store(world):
    store, polls, put = world
    with pytest.raises(RequestError) as problem:
        put.write(NewMessage("t", 0, bytes(1001), {}))
    assert problem.value.code == 13
    assert "msg body length limit 1000B" in (problem.value.remark or "")
    store.disk_full = True
    with pytest.raises(RequestError) as problem:
        put.write(NewMessage("t", 0, b"x", {}))
    assert problem.value.code == 14
    assert not polls.grown
    assert store.max_physical_offset == 0


def test_official_remarks():
    assert store_refusal(StoreFull("why"), 1).remark == (
        "service not available now. It may be caused by one of the following reasons: the broker's disk is full "
        "[why], messages are put to the slave, message store has been shut down, etc."
    )
    assert store_refusal(MessageIllegal("why"), 4194304).remark == (
        "the message is illegal, maybe msg body or properties length not matched. msg body length limit 4194304B, "
        "msg properties length limit 32KB."
    )
