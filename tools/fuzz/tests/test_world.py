"""The world learns only facts that valid requests can be made of, whatever mutated sends have stored."""

from codec.message import Message, encode_message
from tools.fuzz.valid_requests import RequestSource
from tools.fuzz.values import Chance
from tools.fuzz.world import KEPT_FACTS, NO_RECEIPT, FuzzWorld

BATCH_ACK = 200151
REPLY = {"popTime": "1700000000000", "invisibleTime": "60000", "reviveQid": "0", "startOffsetInfo": "0 1 5"}


def popped(properties: dict[str, str], queue_offset: int = 7) -> bytes:
    host = ("127.0.0.1", 10911)
    return encode_message(
        Message(
            topic="fuzz_normal",
            body=b"popped",
            properties=properties,
            queue_id=1,
            queue_offset=queue_offset,
            born_timestamp=1_700_000_000_000,
            born_host=host,
            store_timestamp=1_700_000_000_000,
            store_host=host,
        )
    )


def learn(world: FuzzWorld, properties: dict[str, str]) -> None:
    world.learn_pop("fuzz_normal", "fuzz_group", REPLY, popped(properties))


def test_a_handle_is_learned_from_the_message_or_the_answer():
    world = FuzzWorld()
    learn(world, {"POP_CK": "5 1700000000000 60000 3 1 broker-a 1 7"})
    learn(world, {})
    assert [each.extra_info for each in world.receipts][-2:] == [
        "5 1700000000000 60000 3 1 broker-a 1 7",
        "5 1700000000000 60000 0 0 broker-a 1 7",
    ]


def test_a_handle_that_a_producer_made_up_is_left_out():
    world = FuzzWorld()
    for text in ("1 2", "x", "5 1 60000 - 1 broker-a 1 7", "5 1 60000 \u0663 1 broker-a 1 7", " " * 7):
        learn(world, {"POP_CK": text})
    assert list(world.receipts) == [NO_RECEIPT] * KEPT_FACTS
    for seed in range(50):
        request = RequestSource(Chance(f"batch ack {seed}"), world).request(BATCH_ACK)
        assert all(ack["r"] == "0" for ack in request.json_body["acks"])
