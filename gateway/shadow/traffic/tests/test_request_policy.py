from pathlib import Path

from gateway.shadow.traffic.request_policy import (
    POLICIES,
    UNKNOWN_CODE_POLICY,
    Treatment,
    mirrored_codes,
    policy_of,
    render_policy_page,
    topic_exclusion_reason,
)
from remoting.declare import NOT_SERVED, REQUESTS

PAGE = Path(__file__).resolve().parents[4] / "docs" / "reference" / "mirror-policy.md"


def test_every_declared_code_has_an_entry_and_no_other():
    # Requests between the processes of one server never pass through a gateway.
    own = "remoting.requests.processes"
    declared = {code for code, request in REQUESTS.items() if request.__module__ != own}
    assert POLICIES.keys() == declared
    assert all(each.reason for each in POLICIES.values())


def test_other_codes_are_left_out():
    assert all(policy_of(code) is UNKNOWN_CODE_POLICY for code in (*NOT_SERVED, 424_242))


def test_changes_of_messages_offsets_topics_and_groups_are_mirrored():
    assert mirrored_codes() == {10, 310, 320, 37, 15, 370, 17, 18, 215, 200, 225, 207, 353, 401}
    assert policy_of(36).treatment is Treatment.LEFT_OUT


def test_topics_that_are_not_users_own():
    assert topic_exclusion_reason("orders") == ""
    assert all(
        map(
            topic_exclusion_reason,
            ("%RETRY%GID", "%DLQ%GID", "TBW102", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"),
        )
    )


def test_document_matches_the_table():
    assert PAGE.read_text() == render_policy_page(), (
        "run python -c 'from gateway.shadow.traffic.request_policy import render_policy_page as page; "
        "print(page(), end=str())' > docs/reference/mirror-policy.md"
    )
