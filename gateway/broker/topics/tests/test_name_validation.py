import pytest

from codec import topics as topic_names
from gateway.broker.topics import name_validation as names


@pytest.mark.parametrize("topic", ["a", "A_b-9|%", "x" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250])
def test_acceptable_topics(topic):
    assert names.topic_name_error(topic) is None


@pytest.mark.parametrize(
    ("topic", "fault"),
    [
        ("", "The specified topic is blank."),
        ("  ", "The specified topic is blank."),
        ("a b", "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("ünï", "The specified topic: ünï, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("a\n", "The specified topic: a\n, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("x" * 128, f"The specified topic: {'x' * 128}, is longer than topic max length: 127"),
        (
            "%DLQ%" + "g" * 251,
            f"The specified topic is DLQ or Retry topic: %DLQ%{'g' * 251}, "
            "and it's longer than topic max length: 255",
        ),
    ],
)
def test_refused_topics(topic, fault):
    assert names.topic_name_error(topic) == fault


def test_group_names():
    assert names.group_name_error("g" * 120) is None
    assert names.group_name_error("g" * 121) == (
        f"The specified group: {'g' * 121}, is longer than group max length: 120"
    )
    assert names.group_name_error("") == "The specified group is blank."
    assert "illegal characters" in (names.group_name_error("a.b") or "")


def test_group_of_a_retry_topic():
    assert topic_names.group_of_retry_topic("%RETRY%orders") == "orders"
    assert topic_names.group_of_retry_topic("%RETRY%orders+topic") == "orders"


def test_permission_text():
    assert [topic_names.permission_text(perm) for perm in (6, 7, 4, 2, 0)] == [
        "RW-",
        "RWX",
        "R--",
        "-W-",
        "---",
    ]
