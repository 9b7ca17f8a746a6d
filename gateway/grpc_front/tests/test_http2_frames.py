from hpack import Decoder
from hyperframe.frame import Frame, SettingsFrame
from hypothesis import given
from hypothesis import strategies as st

from gateway.grpc_front.http2_frames import (
    ErrorCode,
    Flag,
    Kind,
    encode_frame,
    encode_goodbye,
    encode_headers,
    encode_reset,
    encode_settings,
    encode_window_update,
)

TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=400)
NAMES = st.sampled_from((":status", "content-type", "allow", "accept", "grpc-status", "grpc-message", "x"))


def parse(data):
    frame, size = Frame.parse_frame_header(memoryview(data[:9]))
    frame.parse_body(memoryview(data[9 : 9 + size]))
    assert len(data) == 9 + size
    return frame


@given(st.lists(st.tuples(NAMES, st.just("200") | TEXTS)))
def test_headers_are_read_by_another_implementation_and_leave_nothing_in_its_table(headers):
    decoder = Decoder(max_header_list_size=1 << 20)
    assert decoder.decode(encode_headers(headers)) == headers
    assert decoder.header_table._current_size == 0


@given(st.binary(max_size=300), st.integers(1, (1 << 31) - 1), st.booleans())
def test_data(payload, stream_id, is_last):
    frame = parse(encode_frame(Kind.DATA, Flag.END_STREAM if is_last else 0, stream_id, payload))
    assert (frame.data, frame.stream_id, "END_STREAM" in frame.flags) == (payload, stream_id, is_last)


def test_control_frames():
    assert parse(encode_settings({4: 1 << 20, 3: 100})).settings == {
        SettingsFrame.INITIAL_WINDOW_SIZE: 1 << 20,
        SettingsFrame.MAX_CONCURRENT_STREAMS: 100,
    }
    update = parse(encode_window_update(7, 12_345))
    assert (update.stream_id, update.window_increment) == (7, 12_345)
    reset = parse(encode_reset(9, ErrorCode.PROTOCOL_ERROR))
    assert (reset.stream_id, reset.error_code) == (9, 1)
    goodbye = parse(encode_goodbye(11, ErrorCode.NO_ERROR))
    assert (goodbye.last_stream_id, goodbye.error_code) == (11, 0)
