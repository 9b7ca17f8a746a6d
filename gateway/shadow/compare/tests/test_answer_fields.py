from codec.message import Message
from gateway.shadow.compare.answer_fields import (
    ABSENT,
    EMPTY,
    OpaqueBytes,
    body_leaves,
    format_value,
    header_leaves,
    message_leaves,
)


def header(code, **ext):
    return {leaf.at: leaf.value for leaf in header_leaves(code, ext)}


def body(code, data, rename=None):
    return {leaf.at: leaf.value for leaf in body_leaves(code, data, rename or {})}


def test_header_fields_by_type():
    assert header(310, queueId="007", msgId="A")["queueId"] == 7
    assert header(322, changed="TRUE")["changed"] is True
    assert header(310, queueId="x")["queueId"] == "x"


def test_absent_is_neither_empty_nor_zero():
    assert header(310)["queueId"] is ABSENT
    assert header(310, transactionId="")["transactionId"] == ""
    assert header(310)["transactionId"] is ABSENT


def test_undeclared_header_fields_are_text():
    assert header(310, MSG_REGION="here")["MSG_REGION"] == "here"
    assert header(424242, anything="1") == {"anything": "1"}


def test_a_declared_body_has_the_defaults_of_the_official_class():
    bare = body(351, b'{"topicName":"orders"}')
    assert bare["body.readQueueNums"] == 16
    assert bare["body.attributes"] is EMPTY
    same = (
        b'{"topicName":"orders","readQueueNums":"16","order":"false","attributes":null,"mappingDetail":null}'
    )
    assert body(351, same) == bare


def test_undeclared_fields_of_a_body_are_seen():
    assert body(351, b'{"topicName":"orders","news":{"deep":[1]}}')["body.news{deep}[0]"] == 1


def test_nested_undeclared_fields_are_seen():
    data = b'{"topicConfigTable":{"orders":{"topicName":"orders","news":3}}}'
    leaves = {leaf.path: leaf.value for leaf in body_leaves(21, data, {})}
    assert leaves["body.topicConfigTable{}.news"] == 3


def test_keys_that_are_objects():
    data = b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"t"}:{"maxOffset":5,"minOffset":0}}}'
    assert body(202, data)["body.offsetTable{brokerName=b,queueId=1,topic=t}.maxOffset"] == 5
    assert body(202, data, {"b": "c"})["body.offsetTable{brokerName=c,queueId=1,topic=t}.maxOffset"] == 5


def test_sets_have_no_order():
    assert body(206, b'{"topicList":["a","b"]}') == body(206, b'{"topicList":["b","a"]}')
    one = b'{"queueDatas":[{"brokerName":"a","perm":6},{"brokerName":"b","perm":4}]}'
    two = b'{"queueDatas":[{"brokerName":"b","perm":4},{"brokerName":"a","perm":6}]}'
    assert body(105, one) == body(105, two)


def test_a_body_that_is_not_json_is_one_value():
    assert body(21, b"\x00\x01") == {"body": OpaqueBytes.from_bytes(b"\x00\x01")}
    assert body(21, b"[]") == {"body": OpaqueBytes.from_bytes(b"[]")}
    assert body(15, b"") == {"body": ABSENT}


def test_a_body_nobody_declared_is_walked_as_json():
    assert body(424242, b'{"a":[{"b":null}]}') == {"body{a}[0]{b}": ABSENT}


def test_bodies_and_user_properties_are_never_shown():
    message = Message("orders", b"SECRET", {"mine": "SECRET", "TAGS": "red"}, sys_flag=0x31)
    leaves = list(message_leaves(message, "k", same_offsets=False))
    assert "SECRET" not in " ".join(format_value(leaf.path, leaf.value) for leaf in leaves)
    values = {leaf.path: leaf.value for leaf in leaves}
    assert values["messages[].properties.TAGS"] == "red"
    assert values["messages[].sysFlag"] == 1
    assert "messages[].properties.*" in values


def test_shown_values_are_bounded_and_hold_no_secrets():
    assert len(format_value("x", "y" * 10_000)) < 200
    assert format_value("body.password", "p") == "<secret>"
    assert format_value("body.password", ABSENT) == "absent"
