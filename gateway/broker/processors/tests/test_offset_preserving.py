import pytest

from codec.constants import ResponseCode
from codec.message import encode_message
from codec.topics import DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from gateway.tests.broker_fakes import FakeConnection
from gateway.tests.broker_world import World
from remoting.errors import RequestError
from remoting.requests.offsets import GetMaxOffset, GetMinOffset
from remoting.requests.replication import UNEXPECTED_OFFSET, PutMessagesAtOffsets
from storage.append import NewMessage
from storage.errors import StoreFull
from storage.files import MemoryFiles


@pytest.fixture
def primary():
    world = World()
    world.topic("t")
    for number in range(9):
        properties = {"UNIQ_KEY": f"u{number}", "TAGS": "a", "DELAY": "3", "TRAN_MSG": "true"}
        world.broker.store.append(
            NewMessage(
                "t",
                0,
                b"%d" % number,
                b"".join(b"%s\x01%s\x02" % (k.encode(), v.encode()) for k, v in properties.items()),
            )
        )
    return world


@pytest.fixture
def target():
    world = World(mirror_target=True)
    world.topic("t")
    return world


def raw(world, offset, count=32):
    return b"".join(bytes(chunk) for chunk in world.broker.store.read("t", 0, offset, count).chunks)


def put(target, primary, offset, count=32, **more):
    request = PutMessagesAtOffsets(**{"topic": "t", "queue_id": 0, "first_offset": offset, **more})
    request.body = raw(primary, offset, count)
    return target.ask(request)


def refusal(function, *args, **more):
    with pytest.raises(RequestError) as refused:
        function(*args, **more)
    return refused.value.code, refused.value.remark


def test_messages_are_stored_at_their_offsets_and_not_interpreted_again(primary, target):
    assert put(target, primary, 2, reset=True).next_offset == 9
    assert target.ask(GetMinOffset(topic="t", queue_id=0)).offset == 2
    assert target.ask(GetMaxOffset(topic="t", queue_id=0)).offset == 9
    theirs, ours = primary.stored("t")[2:], target.stored("t")
    assert [each.queue_offset for each in ours] == list(range(2, 9))
    assert [(each.body, each.properties) for each in ours] == [
        (each.body, each.properties) for each in theirs
    ]
    assert target.broker.store.topics() == {"t"}


def test_the_reply_says_what_is_expected(primary, target):
    assert put(target, primary, 0, 3).next_offset == 3
    assert put(target, primary, 1, 3).next_offset == 4
    refused = put(target, primary, 6)
    assert (refused.code, refused.next_offset) == (UNEXPECTED_OFFSET, 4)
    assert put(target, primary, 6, reset=True).next_offset == 9


def test_a_broker_that_is_no_target_refuses(primary):
    world = World()
    world.topic("t")
    code, remark = refusal(put, world, primary, 0)
    assert code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert remark == " request type 770001 not supported: mirrorTarget is not set at this broker"


@pytest.mark.parametrize(
    "topic", [SCHEDULE_TOPIC, "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102"]
)
def test_system_topics_are_refused(primary, target, topic):
    assert refusal(put, target, primary, 0, topic=topic)[0] == ResponseCode.NO_PERMISSION


def test_unknown_topics_and_queues_are_refused(primary, target):
    for topic in ("nowhere", f"{RETRY_PREFIX}g", f"{DLQ_PREFIX}g"):
        assert refusal(put, target, primary, 0, topic=topic)[0] == ResponseCode.TOPIC_NOT_EXIST
    assert refusal(put, target, primary, 0, queue_id=99)[0] == ResponseCode.INVALID_PARAMETER
    assert refusal(put, target, primary, 0, queue_id=-1)[0] == ResponseCode.INVALID_PARAMETER
    assert refusal(put, target, primary, 0, first_offset=-1)[0] == ResponseCode.INVALID_PARAMETER


def test_messages_of_another_queue_and_diverged_queues_are_refused(primary, target):
    assert refusal(put, target, primary, 0, queue_id=1)[0] == ResponseCode.MESSAGE_ILLEGAL
    target.put("t")
    code, remark = refusal(put, target, primary, 0)
    assert (code, remark) == (1, "queue 0 of t has another message at offset 0")


def test_a_full_disk_refuses_as_for_sends(primary, target):
    target.broker.store.disk_full = True
    assert refusal(put, target, primary, 0)[0] == ResponseCode.SERVICE_NOT_AVAILABLE
    target.broker.store.disk_full = False

    def full(*args, **more):
        raise StoreFull("no room")

    target.broker.store.append_preserving_offsets = full
    assert refusal(put, target, primary, 0)[0] == ResponseCode.SERVICE_NOT_AVAILABLE


def test_with_synchronous_flush_the_answer_waits_for_the_disk(primary):
    world = World(mirror_target=True, flush_disk_type="SYNC_FLUSH")
    world.topic("t")
    request = PutMessagesAtOffsets(topic="t", queue_id=0, first_offset=0)
    request.body = raw(primary, 0)
    held = []
    world.broker.answer_gate.hold = lambda connection, answer, *more: held.append(answer)
    assert world.handlers[request.code](FakeConnection(), request.to_command(7)) is None
    assert len(held) == 1
    assert world.handlers[request.code](FakeConnection(), request.to_command(7)) is not None


@pytest.mark.parametrize("offset", [2**58, 2**63 - 1])
def test_an_offset_whose_entry_no_file_can_hold_is_refused(target, offset):
    code, remark = refusal(target.ask, PutMessagesAtOffsets(topic="t", queue_id=0, first_offset=offset))
    assert (code, remark) == (29, f"offset {offset} is not between 0 and {2**58 - 1}")


def test_a_queue_that_begins_far_out_is_recovered_without_a_look_at_what_comes_before():
    files, offset = MemoryFiles(), 2**57
    source, target = World(), World(files=files, mirror_target=True)
    target.topic("t")
    source.put("t")
    (message,) = source.stored("t")
    message.queue_offset = offset
    request = PutMessagesAtOffsets(topic="t", queue_id=0, first_offset=offset, reset=True)
    request.body = encode_message(message)
    assert target.ask(request).next_offset == offset + 1
    target.broker.store.write_checkpoint()
    target.broker.store.close(clean=False)
    again = World(files=files, mirror_target=True)
    assert again.ask(GetMaxOffset(topic="t", queue_id=0)).offset == offset + 1
