import pytest

from codec import properties
from codec.expected_differences import EXPECTED_PROPERTY_DIFFERENCES, DifferenceScope
from gateway.shadow.compare.expected_differences import (
    EXPECTED_DIFFERENCES,
    find_expected_difference,
    request_name,
)
from remoting.declare import REQUESTS


def test_every_expected_difference_has_a_reason_and_a_declared_code():
    assert all(each.reason for each in EXPECTED_DIFFERENCES)
    assert all(each.code is None or each.code in REQUESTS for each in EXPECTED_DIFFERENCES)
    assert all(reason for _, reason in EXPECTED_PROPERTY_DIFFERENCES.values())


def test_expected_header_differences_name_declared_fields():
    undeclared = {"MSG_REGION"}
    for each in EXPECTED_DIFFERENCES:
        plain = not set(each.path) & set("*{[.")
        if each.code is not None and plain and each.path not in undeclared:
            assert each.path in {item.wire for item in REQUESTS[each.code].REPLY.FIELDS}, each


def test_masked_properties_are_names_of_the_protocol():
    names = {value for name, value in vars(properties).items() if name.isupper() and isinstance(value, str)}
    assert set(EXPECTED_PROPERTY_DIFFERENCES) <= names


@pytest.mark.parametrize(
    ("code", "path", "kept", "masked"),
    [
        (310, "msgId", True, True),
        (310, "queueOffset", True, False),
        (310, "queueOffset", False, True),
        (310, "queueId", False, False),
        (11, "messages[].storeTimestamp", True, True),
        (11, "messages[].body", False, False),
        (11, "messages[].queueOffset", False, True),
        (21, "body.dataVersion.counter", False, True),
        (21, "body.mappingDataVersion.counter", False, True),
        (21, "body.topicConfigTable{}.perm", False, False),
        (28, "body.table{}", True, True),
        (202, "body.offsetTable{}.maxOffset", False, True),
        (202, "body.offsetTable{}.maxOffset", True, False),
        (99999, "anything", False, False),
    ],
)
def test_expected_differences_by_code_and_field(code, path, kept, masked):
    assert (find_expected_difference(code, path, same_offsets=kept) is not None) is masked


def test_offsets_are_compared_when_the_target_has_the_primarys():
    assert all(
        each.when is DifferenceScope.OWN_OFFSETS
        for each in EXPECTED_DIFFERENCES
        if each.path in ("queueOffset", "messages[].queueOffset")
    )


def test_names_of_requests():
    assert (request_name(310), request_name(424242)) == ("SEND_MESSAGE_V2", "424242")
