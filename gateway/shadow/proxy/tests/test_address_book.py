"""Clients see gateway addresses that depend on the host by which they reached the gateway."""

from gateway.shadow.proxy.address_book import MAX_IGNORED_ADDRESSES, AddressBook, pack_address


def make_book(advertise="auto", ports=None):
    return AddressBook(advertise, (ports or {}).get)


def test_each_client_sees_the_host_it_reached():
    book = make_book()
    book.add_listener("10.1.0.1:10911", 20911)
    first, second = book.view_for(("10.0.0.9", 9876)), book.view_for(("fd00::9", 9876))
    assert first.translate_address("10.1.0.1:10911") == "10.0.0.9:20911"
    assert second.translate_address("10.1.0.1:10911") == "[fd00::9]:20911"
    assert book.view_for(("10.0.0.9", 1)) is first
    book.add_listener("10.1.0.2:10911", 20921)
    assert first.translate_address("10.1.0.2:10911") == "10.0.0.9:20921"


def test_an_advertised_host_is_shown_to_all_clients():
    book = make_book("gw.example")
    book.add_listener("10.1.0.1:10911", 20911)
    view = book.view_for(("10.0.0.9", 9876))
    assert view.translate_address("10.1.0.1:10911") == "gw.example:20911"
    assert view.store_hosts == {}  # A name has no packed form, so message ids lead to the primary itself.


def test_a_new_address_opens_a_listener_or_stays():
    view = make_book(ports={"10.1.0.1:10911": 1, "x:1": 0}).view_for(("10.0.0.9", 1))
    assert view.translate_address("10.1.0.1:10911") == "10.0.0.9:1"
    assert view.translate_address("x:1") == "x:1"


def test_messages_of_a_named_broker_have_its_numeric_address():
    book = make_book()
    book.add_listener("broker.example:10911", 20911)
    early = book.view_for(("10.0.0.9", 1))
    book.add_store_host("broker.example:10911", "10.1.0.1:10911")
    for view in (early, book.view_for(("10.0.0.8", 1))):
        assert view.store_hosts == {pack_address("10.1.0.1:10911"): pack_address(f"{view.host}:20911")}


def test_a_removed_address_stays_as_the_primary_sends_it():
    book = make_book()
    book.add_listener("10.1.0.1:10911", 20911)
    book.add_listener("broker.example:10911", 20921)
    book.add_store_host("broker.example:10911", "10.1.0.2:10911")
    view = book.view_for(("10.0.0.9", 1))
    assert len(view.store_hosts) == len(view.id_prefixes) == 2
    book.remove_listener("broker.example:10911")
    book.remove_listener("10.1.0.1:10911")
    book.remove_listener("10.1.0.1:10911")
    for each in (view, book.view_for(("10.0.0.8", 1))):
        assert (each.gateway_addresses, each.store_hosts, each.id_prefixes) == ({}, {}, {})


def test_ignored_addresses_are_bounded_and_never_the_primarys():
    book = make_book(ports={"10.1.0.2:1": 5})
    book.add_listener("10.1.0.1:10911", 20911)
    for number in range(MAX_IGNORED_ADDRESSES + 10):
        book.ignore_address("10.1.0.1:10911")
        book.ignore_address(f"10.2.0.{number}:1")
    assert book.is_ignored("10.2.0.0:1")
    assert not book.is_ignored("10.1.0.1:10911")
    assert not book.is_ignored(f"10.2.0.{MAX_IGNORED_ADDRESSES}:1")
    assert book.view_for(("10.0.0.9", 1)).translate_address("10.2.0.1:1") == "10.2.0.1:1"
