import pytest

from codec.message import Message
from gateway.grpc_front import messages
from gateway.grpc_front.conversion import to_grpc_message

STORED_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TIMER_DELAY_MS": "1500"}, STORED_MS + 1500),
        ({"TIMER_DELAY_SEC": "2"}, STORED_MS + 2000),
        ({"TIMER_DELIVER_MS": str(STORED_MS + 9)}, STORED_MS + 9),
    ],
)
def test_every_kind_of_timer_message_is_delayed(properties, due_ms):
    stored = Message(topic="t", properties=properties, store_timestamp=STORED_MS)
    system = to_grpc_message(stored).system_properties
    assert system.message_type == messages.DELAY
    assert system.delivery_timestamp.ToMilliseconds() == due_ms
