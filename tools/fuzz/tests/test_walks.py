"""Walks: the same seed gives the same bytes, every declared request is sent, and nothing points away from here."""

import re

from codec.command import decode_frame
from codec.errors import FrameError
from remoting.declare import REQUESTS
from tools.fuzz.mutations import REGISTRATION_CODES
from tools.fuzz.valid_requests import RequestSource
from tools.fuzz.values import Chance
from tools.fuzz.walks import Expect, Port, Walk, build_walk
from tools.fuzz.world import FuzzWorld

BOTH = (Port.BROKER, Port.NAMESRV)


def walks(seed: int, count: int) -> list[Walk]:
    world = FuzzWorld()
    return [build_walk(seed, number, world, BOTH) for number in range(count)]


def test_a_seed_gives_the_same_bytes_again():
    first, second = walks(7, 300), walks(7, 300)
    assert [[frame.data for frame in walk.frames] for walk in first] == [
        [frame.data for frame in walk.frames] for walk in second
    ]
    assert first != walks(8, 300)


def test_a_walk_does_not_depend_on_those_before_it():
    world = FuzzWorld()
    assert (
        build_walk(3, 500, world, BOTH) == [build_walk(3, number, world, BOTH) for number in range(501)][500]
    )


def test_every_declared_request_is_sent():
    sent = {frame.code for walk in walks(1, 6000) for frame in walk.frames}
    assert REQUESTS.keys() <= sent
    assert sent - REQUESTS.keys()


def test_most_frames_are_whole_and_due_an_answer():
    singles = [walk for walk in walks(2, 1000) if not walk.connections]
    assert len(singles) > 700
    for walk in singles:
        for frame in walk.frames:
            decode_frame(frame.data, 4, len(frame.data))
    due = [frame for walk in singles for frame in walk.frames if frame.expects is Expect.ANSWER]
    assert len(due) > 500


def test_valid_requests_are_what_they_declare():
    world = FuzzWorld()
    for code, request_type in REQUESTS.items():
        request = RequestSource(Chance(f"valid {code}"), world).request(code)
        if code not in (25, 318, 1009, 103):
            required = {item.wire for item in request_type.WIRE_FIELDS if item.required}
            assert required <= request.ext.keys(), request_type


def test_registrations_name_only_addresses_of_this_machine():
    """A shadow gateway dials the brokers that its namesrv names."""
    foreign = re.compile(rb"(?<![\d.])(?!127\.0\.0\.1)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}:\d")
    seen = 0
    for walk in walks(5, 8000):
        for frame in walk.frames:
            if frame.code not in (*REGISTRATION_CODES, 104, 904):
                continue
            seen += 1
            assert not foreign.search(frame.data), frame.data
            try:
                ext = decode_frame(frame.data, 4, len(frame.data)).ext
            except FrameError:
                continue
            for name, value in ext.items():
                if "ddr" in name:
                    assert not re.match(r"[A-Za-z].*:\d", value), value
    assert seen > 300
