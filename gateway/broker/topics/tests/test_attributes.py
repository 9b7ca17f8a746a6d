import pytest

from gateway.broker.topics.attributes import TOPIC_ATTRIBUTES, apply_changes, parse_modification


def test_the_modification_language():
    assert parse_modification("+a=1,-b") == {"+a": "1", "-b": ""}
    assert parse_modification("") == parse_modification(None) == {}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a=1", "add/alter attribute format is wrong: a"),
        ("a", "delete attribute format is wrong: a"),
        ("+a=1,+a=2", "key duplication: +a"),
    ],
)
def test_unreadable_modifications(text, fault):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the text is compared as a whole
        parse_modification(text)
    assert str(refused.value) == fault


def test_set_change_and_remove():
    kept = apply_changes(TOPIC_ATTRIBUTES, None, {"+message.type": "FIFO", "+queue.type": "SimpleCQ"})
    assert kept == {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    assert apply_changes(TOPIC_ATTRIBUTES, kept, {"+message.type": "DELAY"})["message.type"] == "DELAY"
    assert apply_changes(TOPIC_ATTRIBUTES, kept, {"-message.type": ""}) == {"queue.type": "SimpleCQ"}
    assert kept["message.type"] == "FIFO"


@pytest.mark.parametrize(
    ("current", "changes", "fault"),
    [
        ({}, {"+x": "1"}, "unsupported key: x"),
        ({}, {"+queue.type": "SimpleCQ"}, "attempt to update an unchangeable attribute. key: queue.type"),
        ({}, {"-message.type": ""}, "attempt to delete a nonexistent key: message.type"),
        ({"message.type": "FIFO"}, {"message.type": "DELAY"}, "wrong format key: essage.type"),
        (
            None,
            {"-message.type": ""},
            "only add attribute is supported while creating topic. key: message.type",
        ),
        ({}, {"+": "1"}, "kv string format wrong."),
        ({}, {"++a": "1"}, "kv string format wrong."),
        ({"message.type": "FIFO"}, {"+message.type": "DELAY", "-message.type": ""}, "alter duplication key"),
        ({}, {"+message.type": "ROUND"}, "value is not in set: [DELAY, FIFO"),
        ({}, {"+reserve.time": "-2"}, "value is not in range(-1, 9223372036854775807)"),
        ({}, {"+reserve.time": "soon"}, 'For input string: "soon"'),
    ],
)
def test_refused_changes(current, changes, fault):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the text is compared from its start
        apply_changes(TOPIC_ATTRIBUTES, current, changes)
    assert str(refused.value).startswith(fault)


@pytest.mark.parametrize("number", ["1_0", " 5", "", "9" * 20, "9" * 5000, "1e3"])
def test_a_number_that_java_would_not_read_is_refused_with_its_text(number: str) -> None:
    with pytest.raises(ValueError, match="For input string:"):
        apply_changes(TOPIC_ATTRIBUTES, {}, {"+quota.send.messages": number})
