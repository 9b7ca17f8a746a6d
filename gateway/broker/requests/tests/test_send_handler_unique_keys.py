import os
from datetime import datetime

from codec.ids import decode_unique_key
from gateway.broker.requests.send_handler import UniqueKeyGenerator
from gateway.tests.broker_fakes import FakeClock


def test_keys_differ_and_look_as_clients_make_them():
    keys = UniqueKeyGenerator(FakeClock())
    made = [keys.next_key() for _ in range(1000)]
    assert all(len(key) == 32 and set(key) <= set("0123456789ABCDEF") for key in made)
    assert len(set(made)) == 1000


def test_keys_of_two_brokers_of_one_process_differ():
    clock = FakeClock()
    assert UniqueKeyGenerator(clock).next_key() != UniqueKeyGenerator(clock).next_key()


def test_the_time_of_the_month_is_in_the_key():
    for day in (1, 31):
        now = datetime(2024, 1, day, 12, 30, 5, 250_000)
        keys = UniqueKeyGenerator(FakeClock(int(now.timestamp() * 1000)), "10.1.2.3")
        decoded = decode_unique_key(keys.next_key())
        of_day_ms = ((12 * 60 + 30) * 60 + 5) * 1000 + 250
        assert (decoded.address, decoded.elapsed_ms) == ("10.1.2.3", (day - 1) * 86_400_000 + of_day_ms)
        assert decoded.process_id == os.getpid() & 0xFFFF


def test_an_ipv6_broker_makes_longer_keys():
    assert len(UniqueKeyGenerator(FakeClock(), "2001:db8::1").next_key()) == 56
