import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codec.command import Command
from codec.message import Message, encode_message
from gateway.shadow.compare.answer_diff import MAX_DIFFERENCES, SAME_SERVER, ComparisonTerms, diff_answers
from gateway.shadow.tests.fake_queues import stored

OTHER = ComparisonTerms()


def answer(code=0, remark=None, body=b"", **ext):
    return Command(
        code, flag=1, ext={name: str(value) for name, value in ext.items()}, remark=remark, body=body
    )


def pulled(messages, *, following=None, code=0):
    found = [replace(each, queue_offset=each.queue_offset or at) for at, each in enumerate(messages)]
    return answer(
        code,
        body=b"".join(map(encode_message, found)),
        nextBeginOffset=len(found) if following is None else following,
        suggestWhichBrokerId=0,
        minOffset=0,
        maxOffset=99,
    )


def paths(code, primary, target, terms=OTHER):
    return [difference.path for difference in diff_answers(code, primary, target, terms)]


def test_a_send():
    primary = answer(msgId="A", queueId=1, queueOffset=5, MSG_REGION="a")
    target = answer(msgId="B", queueId=1, queueOffset=6, MSG_REGION="b")
    assert paths(310, primary, target) == []
    assert paths(310, primary, target, SAME_SERVER) == ["queueOffset"]
    assert paths(310, primary, answer(queueId=2, msgId="B")) == ["queueId"]
    (difference,) = diff_answers(310, primary, answer(queueId=2, msgId="B"), OTHER)
    assert (difference.request, difference.primary, difference.target) == ("SEND_MESSAGE_V2", "1", "2")


def test_numbers_are_equal_however_they_are_spelled():
    assert paths(30, answer(offset="5"), answer(offset="05"), SAME_SERVER) == []


def test_absent_is_not_empty():
    primary = answer(msgId="A", queueId=1, queueOffset=5, transactionId="")
    assert paths(310, primary, answer(msgId="A", queueId=1, queueOffset=5), SAME_SERVER) == ["transactionId"]


def test_other_codes_are_told_once():
    (difference,) = diff_answers(
        310, answer(queueId=1, queueOffset=5), answer(2, "[TIMEOUT_CLEAN_QUEUE]"), OTHER
    )
    assert (difference.path, difference.primary, difference.target) == (
        "code",
        "0",
        "2 [TIMEOUT_CLEAN_QUEUE]",
    )


def test_remarks_are_compared_without_addresses():
    primary = answer(17, "topic[x] not exist, apply first please! 10.0.0.1:10911")
    assert paths(310, primary, answer(17, "topic[x] not exist, apply first please! 10.9.9.9:1")) == []
    assert paths(310, primary, answer(17, "no such topic")) == ["remark"]
    longer = answer(17, "topic[x] not exist, apply first please! 10.0.0.1:10911 Create it with mqadmin.")
    assert paths(310, primary, longer) == ["remark"]
    assert paths(310, primary, longer, ComparisonTerms(longer_remarks_allowed=True)) == []
    assert paths(310, answer(0, ""), answer(0)) == []


def test_bodies_of_administration():
    primary = answer(body=b'{"topicName":"orders","perm":6}')
    assert paths(351, primary, answer(body=b'{"perm":6,"topicName":"orders","order":false}')) == []
    assert paths(351, primary, answer(body=b'{"perm":4,"topicName":"orders"}')) == ["body.perm"]


def test_broker_names_are_renamed():
    body = b'{"queueDatas":[{"brokerName":"a","perm":6}],"brokerDatas":[]}'
    terms = ComparisonTerms(target_broker_names={"a": "b"})
    assert paths(105, answer(body=body), answer(body=body.replace(b'"a"', b'"b"')), terms) == []


def test_pulled_messages_field_by_field():
    ours = [stored(each) for each in range(4)]
    theirs = [replace(each, store_timestamp=1, physical_offset=5) for each in ours]
    assert paths(11, pulled(ours), pulled(theirs), SAME_SERVER) == []
    theirs[2] = stored(2, body=b"x", properties={"UNIQ_KEY": "U00000002", "__SHARDINGKEY": "K2", "TAGS": "t"})
    assert paths(11, pulled(ours), pulled(theirs), SAME_SERVER) == [
        "messages[].body",
        "messages[].properties.TAGS",
    ]
    assert paths(11, pulled(ours), pulled(theirs)) == ["messages[].body", "messages[].properties.TAGS"]


def test_how_many_messages_fit_a_pull_does_not_matter():
    ours = [stored(each) for each in range(8)]
    assert paths(11, pulled(ours), pulled(ours[:3]), SAME_SERVER) == []
    assert paths(11, pulled(ours), pulled(ours[:3])) == []
    assert paths(11, pulled(ours[:3]), pulled(ours)) == []


def test_lost_and_extra_messages_of_a_pull():
    ours = [stored(each, queue_offset=each + 10) for each in range(4)]
    theirs = [ours[0], ours[2], ours[3]]
    (lost,) = diff_answers(11, pulled(ours, following=14), pulled(theirs, following=14), SAME_SERVER)
    assert (lost.path, lost.primary, lost.target) == ("messages[]", "present", "absent")
    (extra,) = diff_answers(11, pulled(theirs, following=14), pulled(ours, following=14), SAME_SERVER)
    assert extra.target == "present"


def test_order_of_pulled_messages():
    ours = [stored(each) for each in range(4)]
    assert paths(11, pulled(ours), pulled([ours[each] for each in (0, 2, 1, 3)])) == ["messages[].order"]


def test_order_is_that_of_each_queue():
    ours = [stored(1, queue_id=1), stored(2, queue_id=2), stored(3, queue_id=1)]
    bodies = {each.unique_key: encode_message(each) for each in ours}
    one, two, three = bodies.values()
    assert paths(12, answer(body=one + two + three), answer(body=two + one + three)) == []
    assert paths(12, answer(body=one + two + three), answer(body=two + three + one)) == ["messages[].order"]


def test_topics_of_consumers_own_do_not_count():
    body = b'{"topicConfigTable":{"orders":{"topicName":"orders"},"%RETRY%g":{"topicName":"%RETRY%g"}}}'
    assert paths(21, answer(body=body), answer(body=body.replace(b"%RETRY%g", b"%DLQ%g"))) == []
    assert (
        paths(206, answer(body=b'{"topicList":["a","%RETRY%g"]}'), answer(body=b'{"topicList":["a"]}')) == []
    )
    key = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"%b"}:{"maxOffset":1}}}'
    assert paths(208, answer(body=key % b"%RETRY%g"), answer(body=b'{"offsetTable":{}}')) == []
    assert paths(208, answer(body=key % b"t"), answer(body=b'{"offsetTable":{}}'), SAME_SERVER) != []


def test_an_unset_remark_beside_success_is_ignored():
    assert paths(17, answer(0, "not set any response code"), answer(0)) == []


def test_copies_are_told_apart():
    one = encode_message(stored(1))
    assert paths(12, answer(body=one + one), answer(body=one + one)) == []
    assert paths(12, answer(body=one + one), answer(body=one)) == ["messages[]"]


def test_damaged_messages_are_one_value():
    assert paths(11, pulled([stored(1)]), answer(body=b"garbage" * 20)) == ["messages"]


def test_differences_are_bounded():
    body = b"{%b}" % b",".join(b'"%d":1' % each for each in range(500))
    assert len(diff_answers(424242, answer(body=body), answer(body=b'{"a":1}'), OTHER)) == MAX_DIFFERENCES


TEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4)


@given(code=st.sampled_from([310, 11, 21, 105, 208, 12, 424242]), ext=TEXTS, body=st.binary(max_size=80))
def test_an_answer_equals_itself_whatever_it_holds(code, ext, body):
    same = Command(0, flag=1, ext=ext, body=body)
    assert diff_answers(code, same, same, OTHER) == diff_answers(code, same, same, SAME_SERVER) == []


@given(
    st.builds(
        Message, st.just("t"), st.binary(max_size=9), TEXTS.map(lambda found: {**found, "UNIQ_KEY": "U"})
    )
)
def test_a_message_equals_itself(message):
    try:
        body = encode_message(message)
    except ValueError:
        return
    assert diff_answers(33, answer(body=body), answer(body=body), SAME_SERVER) == []


HOSTILE_BODIES = [
    b"[" * 100_000,
    b'{"a":' * 90 + b"1" + b"}" * 90,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"%b":1}' % (b"x" * 1_000_000),
    b'{"a":%b}' % (b"9" * 20_000),
    b'{"a":{"%b":[[[[1]]]]}}' % (b"[{" * 50_000),
]


@pytest.mark.parametrize("body", HOSTILE_BODIES)
def test_hostile_bodies_are_compared_in_bounded_time_and_text(body):
    with deadline():
        found = diff_answers(21, Command(0, body=b'{"a":1}'), Command(0, body=body), ComparisonTerms())
    assert found
    assert all(len(each.path) <= 200 and len(each.at) <= 1000 for each in found)
    assert all(len(each.primary) < 300 and len(each.target) < 300 for each in found)


@pytest.mark.parametrize("remark", ["a" * 1_000_000, ":" * 1_000_000, "1.2.3.4:" * 100_000, "[" * 100_000])
def test_a_hostile_remark_takes_no_quadratic_time(remark):
    """The search for addresses in a million hexadecimal digits would have taken weeks."""
    with deadline():
        diff_answers(10, Command(1, remark="no"), Command(1, remark=remark), ComparisonTerms())


def test_large_bodies_are_one_value():
    ours, theirs = Command(0, body=b'{"a":1}'), Command(0, body=b" " * 1000)
    (found,) = diff_answers(21, ours, theirs, ComparisonTerms(), 100)
    assert (found.path, found.primary) == ("body", "7 bytes, too many to compare by field")
    assert diff_answers(21, theirs, theirs, ComparisonTerms(), 100) == []


@contextmanager
def deadline(seconds=20.0):
    """Fail a test that takes absurdly long; what is meant takes milliseconds."""
    started = time.process_time()
    yield
    assert time.process_time() - started < seconds
