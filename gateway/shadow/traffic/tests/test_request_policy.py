from pathlib import Path

from gateway.shadow.traffic.request_policy import (
    TABLE,
    UNKNOWN,
    Way,
    mirrored_codes,
    page,
    policy_of,
    topic_left_out,
)
from remoting.declare import NOT_SERVED, REQUESTS

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "mirror-policy.md"


def test_every_declared_code_has_an_entry_and_no_other():
    assert TABLE.keys() == REQUESTS.keys()
    assert all(each.reason for each in TABLE.values())


def test_other_codes_are_left_out():
    assert all(policy_of(code) is UNKNOWN for code in (*NOT_SERVED, 424_242))


def test_what_changes_messages_offsets_topics_or_groups_is_mirrored():
    assert mirrored_codes() == {10, 310, 320, 37, 15, 370, 17, 18, 215, 200, 225, 207, 353, 401}
    assert policy_of(36).way is Way.LEFT_OUT


def test_topics_that_are_not_users_own():
    assert topic_left_out("orders") == ""
    assert all(
        map(
            topic_left_out, ("%RETRY%GID", "%DLQ%GID", "TBW102", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX")
        )
    )


def test_the_document_is_what_the_table_prints():
    assert PAGE.read_text() == page(), (
        "print gateway.shadow.traffic.request_policy.page() into docs/reference/mirror-policy.md"
    )
