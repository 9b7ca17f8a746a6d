import pytest

from gateway.broker.replication.ha_access import (
    MAX_TICKETS,
    PREFACE,
    READER_PREFACE,
    TICKET_S,
    HaAccess,
    encode_preface,
    only_reads,
)
from gateway.broker.replication.ha_wire import HaWireError, encode_report

REPORT = encode_report(4096)
HOST, OFFICIAL = "10.0.0.7", "10.1.2.3"


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def access(allowed="", *, has_access_control=False, clock=None):
    return HaAccess(allowed, has_access_control=has_access_control, now=clock or Clock())


def test_without_access_control_everybody_is_admitted_as_officially():
    assert access().read_opening(REPORT, OFFICIAL) == REPORT


@pytest.mark.parametrize("has_access_control", [False, True])
def test_listed_addresses_are_admitted_and_no_others(has_access_control):
    admits = access("10.0.0.7;10.1.0.0/16;::1", has_access_control=has_access_control).read_opening
    for host in (HOST, OFFICIAL, "::ffff:10.0.0.7", "::1"):
        assert admits(REPORT, host) == REPORT
    for host in ("10.0.0.8", "10.2.0.1", "auto"):
        with pytest.raises(HaWireError, match="haAllowedAddresses"):
            admits(REPORT, host)


def test_with_access_control_a_slave_needs_a_ticket():
    guarded = access(has_access_control=True)
    with pytest.raises(HaWireError, match="it has no valid ticket"):
        guarded.read_opening(REPORT, HOST)
    opening = encode_preface(guarded.issue_ticket())
    assert guarded.read_opening(opening + REPORT, HOST) == REPORT
    with pytest.raises(HaWireError, match="it has no valid ticket"):
        guarded.read_opening(opening + REPORT, HOST)


def test_a_reader_needs_a_ticket_as_well():
    guarded = access(has_access_control=True)
    opening = encode_preface(guarded.issue_ticket(), READER_PREFACE)
    assert only_reads(opening)
    assert not only_reads(encode_preface(guarded.issue_ticket()))
    assert not only_reads(REPORT)
    assert guarded.read_opening(opening + REPORT, HOST) == REPORT
    with pytest.raises(HaWireError, match="it has no valid ticket"):
        guarded.read_opening(opening + REPORT, HOST)


def test_a_ticket_names_the_slave_until_it_is_used():
    guarded = access(has_access_control=True)
    opening = encode_preface(guarded.issue_ticket(3)) + REPORT
    assert guarded.find_broker_id(opening[:20]) is None
    assert guarded.find_broker_id(opening) == 3
    assert guarded.read_opening(opening, HOST) == REPORT
    assert guarded.find_broker_id(opening) is None
    assert guarded.find_broker_id(encode_preface(guarded.issue_ticket()) + REPORT) is None
    assert guarded.find_broker_id(REPORT) is None


def test_an_opening_may_come_in_pieces():
    guarded = access(has_access_control=True)
    opening = encode_preface(guarded.issue_ticket()) + REPORT
    for end in (0, 1, 7, len(PREFACE), 20, len(PREFACE) + 31):
        assert guarded.read_opening(opening[:end], HOST) is None
    assert guarded.read_opening(opening, HOST) == REPORT


def test_a_ticket_that_anybody_gets_proves_nothing():
    listed = access("10.1.0.0/16")
    opening = encode_preface(listed.issue_ticket()) + REPORT
    with pytest.raises(HaWireError, match=r"10\.0\.0\.7 is not in haAllowedAddresses"):
        listed.read_opening(opening, HOST)
    assert listed.read_opening(opening, OFFICIAL) == REPORT, "a slave of ours at a listed address"


def test_tickets_expire_and_are_bounded():
    clock = Clock()
    guarded = access(has_access_control=True, clock=clock)
    late = encode_preface(guarded.issue_ticket())
    clock.now_s += TICKET_S + 1
    with pytest.raises(HaWireError):
        guarded.read_opening(late, HOST)
    first, *others = [encode_preface(guarded.issue_ticket()) for _ in range(MAX_TICKETS + 1)]
    with pytest.raises(HaWireError):
        guarded.read_opening(first, HOST)
    assert all(guarded.read_opening(ticket, HOST) == b"" for ticket in others)


def test_texts_that_are_no_addresses_and_no_tickets_are_refused():
    with pytest.raises(ValueError, match=r"300\.0\.0\.1"):
        access("300.0.0.1")
    with pytest.raises(ValueError, match="32 bytes"):
        encode_preface("00ff")
