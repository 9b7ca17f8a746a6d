"""Walks against the gRPC port are functions of the seed, and reach every method and flood."""

from tools.fuzz.grpc_messages import METHODS, MessageSource, part, varint
from tools.fuzz.grpc_walks import _FLOODS, PREFACE, build_grpc_walk
from tools.fuzz.values import Chance
from tools.fuzz.walks import Ending, Expect, Port
from tools.fuzz.world import FuzzWorld


def test_the_same_number_gives_the_same_bytes():
    one, two, other = (build_grpc_walk(seed, 7, FuzzWorld()) for seed in (1, 1, 2))
    assert [frame.data for frame in one.frames] == [frame.data for frame in two.frames]
    assert [frame.data for frame in one.frames] != [frame.data for frame in other.frames]


def test_walks_reach_every_method_and_flood():
    walks = [build_grpc_walk(1, number, FuzzWorld()) for number in range(600)]
    assert {walk.port for walk in walks} == {Port.GRPC}
    calls = [frame for walk in walks for frame in walk.frames if frame.expects is not Expect.NOTHING]
    assert {frame.code for frame in calls} == set(METHODS)
    floods = {flood.__name__.strip("_") for flood in _FLOODS}
    assert {walk.kind for walk in walks} == {"calls", "damage", *floods}
    assert {walk.ending for walk in walks} == set(Ending)


def test_the_calls_of_a_connection_have_streams_of_their_own():
    for number in range(100):
        walk = build_grpc_walk(3, number, FuzzWorld())
        if walk.kind != "calls":
            continue
        assert walk.frames[0].data.startswith(PREFACE)
        streams = [frame.opaque for frame in walk.frames[1:]]
        assert streams == list(range(1, 2 * len(streams), 2))


def test_fields_are_encoded_as_protobuf_does():
    assert (varint(0), varint(300), len(varint(2**64 - 1))) == (b"\0", b"\xac\x02", 10)
    assert part(2, b"orders") == b"\x12\x06orders"
    assert MessageSource(Chance("1"), FuzzWorld()).valid_send().startswith(b"\x0a")
