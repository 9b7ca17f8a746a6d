import pytest

from gateway.shadow.mirror.spill_backlog import decode_exchange, encode_exchange
from gateway.shadow.tests.exchanges import make_exchange, make_send_exchange
from gateway.shadow.traffic.exchange import Side


def same(one, other):
    names = one.__slots__
    return [getattr(one, name) for name in names] == [getattr(other, name) for name in names]


@pytest.mark.parametrize(
    "each",
    [
        make_send_exchange("orders"),
        make_exchange(37, b"request", None, side=Side.TARGET),
        make_exchange(39, b"r", b"", reverse=True),
    ],
)
def test_exchange_survives_encoding_and_decoding(each):
    assert same(decode_exchange(encode_exchange(each)), each)
