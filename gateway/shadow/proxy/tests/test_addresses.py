"""Addresses of the primary as clients of one of our hosts know them."""

from gateway.shadow.proxy.addresses import MOST_LEFT_ALONE, AddressBook, joined, packed


def book_of(advertise="auto", ports=None):
    return AddressBook(advertise, (ports or {}).get)


def test_every_client_hears_of_the_host_it_reached():
    book = book_of()
    book.add("10.1.0.1:10911", 20911)
    first, second = book.view_for(("10.0.0.9", 9876)), book.view_for(("fd00::9", 9876))
    assert first.name("10.1.0.1:10911") == "10.0.0.9:20911"
    assert second.name("10.1.0.1:10911") == "[fd00::9]:20911"
    assert book.view_for(("10.0.0.9", 1)) is first
    book.add("10.1.0.2:10911", 20921)
    assert first.name("10.1.0.2:10911") == "10.0.0.9:20921"


def test_an_advertised_host_is_told_to_all():
    book = book_of("gw.example")
    book.add("10.1.0.1:10911", 20911)
    view = book.view_for(("10.0.0.9", 9876))
    assert view.name("10.1.0.1:10911") == "gw.example:20911"
    assert view.hosts == {}  # A name has no packed form: ids lead to the primary itself.


def test_listeners_open_when_an_address_is_first_seen_and_an_address_without_one_stays():
    view = book_of(ports={"10.1.0.1:10911": 1, "x:1": 0}).view_for(("10.0.0.9", 1))
    assert view.name("10.1.0.1:10911") == "10.0.0.9:1"
    assert view.name("x:1") == "x:1"


def test_names_have_the_numeric_address_of_their_messages():
    book = book_of()
    book.add("broker.example:10911", 20911)
    early = book.view_for(("10.0.0.9", 1))
    book.add_store_host("broker.example:10911", "10.1.0.1:10911")
    for view in (early, book.view_for(("10.0.0.8", 1))):
        assert view.hosts == {packed("10.1.0.1:10911"): packed(f"{view.host}:20911")}


def test_addresses_that_are_left_alone_are_bounded_and_none_of_the_primary():
    book = book_of(ports={"10.1.0.2:1": 5})
    book.add("10.1.0.1:10911", 20911)
    for number in range(MOST_LEFT_ALONE + 10):
        book.leave_alone("10.1.0.1:10911")
        book.leave_alone(f"10.2.0.{number}:1")
    assert book.leaves_alone("10.2.0.0:1")
    assert not book.leaves_alone("10.1.0.1:10911")
    assert not book.leaves_alone(f"10.2.0.{MOST_LEFT_ALONE}:1")
    assert book.view_for(("10.0.0.9", 1)).name("10.2.0.1:1") == "10.2.0.1:1"


def test_joined():
    assert joined("10.0.0.1", 1) == "10.0.0.1:1"
    assert joined("::1", 1) == "[::1]:1"
