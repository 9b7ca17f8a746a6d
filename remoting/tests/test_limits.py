from remoting.frame_connection import CROWDED_WATERMARK_BYTES
from remoting.limits import ConnectionLimits


def test_requests_stop_being_read_before_the_connection_is_closed():
    limits = ConnectionLimits()
    assert limits.read_bytes < limits.output_high_watermark_bytes < limits.max_output_bytes
    assert limits.max_header_bytes < limits.max_frame_bytes
    assert CROWDED_WATERMARK_BYTES < limits.output_high_watermark_bytes < limits.crowded_output_bytes
